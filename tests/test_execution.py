"""How decoding is carried out changes speed and memory, never what is decoded."""

from __future__ import annotations

import warnings

import models
import pytest
import torch

from inertia import Execution, Observation, Policy, generate, preset
from inertia.decoding.choice import choose, near_choices
from inertia.decoding.request import Request, Stopping, TokensPrompt
from inertia.decoding.row import GrowingRow
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Ratio, SeenRatio, Tokens
from inertia.eviction.keep_sets import near_tie
from inertia.eviction.prefill_rule import Prefill
from inertia.prefill.adakv import AdaKV
from inertia.prefill.snapkv import SnapKV

POLICIES = [
    preset("inertiakv", tokens=9),
    preset("full_cache"),
    preset("inertiakv_lazy", tokens=8),
    preset("inertiakv_keydiff", tokens=9),
    Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(8)),
    Policy(aggregation=Decoupled(), scope="per_layer", budget=SeenRatio(0.7)),
]
COMPRESSOR = AdaKV(SnapKV(window=4), alpha=0.2)
ARCHITECTURES = ["llama", "qwen3", "gemma3"]


def decoded(network, ids, policies=POLICIES, new=14, **execution):
    observe = Observation(trace=True, logits=True)
    return generate(network, ids, policies, new, observe=observe, execution=Execution(**execution))


def same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.kept == theirs.kept
        torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputed_scores_decide_what_fused_ones_decide(architecture):
    network, ids = models.tiny(architecture), models.prompt(30)
    same(decoded(network, ids, scoring="recompute"), decoded(network, ids))


def test_recomputed_scores_after_a_ragged_compression():
    network, ids = models.tiny(), models.prompt(40)
    ragged = [
        Policy(
            scope="per_head",
            aggregation=Decoupled(),
            budget=Tokens(7),
            prefill=Prefill(COMPRESSOR, Ratio(0.5), question_visible=True),
        )
    ]
    same(decoded(network, ids, ragged, scoring="recompute"), decoded(network, ids, ragged))


@pytest.mark.parametrize("chunk", [1, 3, 8, 29, 30, 500])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_prompt_read_in_pieces_is_the_prompt_read_at_once(architecture, chunk):
    network, ids = models.tiny(architecture), models.prompt(30)
    same(decoded(network, ids, prefill_chunk=chunk), decoded(network, ids))


def test_a_compressor_must_see_the_whole_prompt():
    network, ids = models.tiny(), models.prompt(30)
    squeezed = Policy(budget=Tokens(8), prefill=Prefill(COMPRESSOR, Ratio(0.5), question_visible=True))
    with pytest.raises(ValueError, match=r"prefill_chunk=8.*adakv.*prefill_chunk=null"):
        decoded(network, ids, [squeezed], prefill_chunk=8)
    same(decoded(network, ids, [squeezed], prefill_chunk=30), decoded(network, ids, [squeezed]))


def test_a_start_must_see_the_whole_prompt_too():
    with pytest.raises(ValueError, match=r"prefill_chunk=8.*prefill_sums.*prefill_chunk=null"):
        decoded(models.tiny(), models.prompt(30), [preset("h2o_original", tokens=9)], prefill_chunk=8)


def test_policies_that_do_not_fit_one_batch_are_split_and_it_says_so():
    network, ids = models.tiny(), models.prompt(30)
    policies = [preset("inertiakv", alpha=alpha, tokens=9) for alpha in (0.1, 0.5, 0.8, 0.9)]
    together = decoded(network, ids, policies)
    assert {each.batch_rows for each in together} == {4}
    row = 3 * 2 * 3 * 8 * 4 * 10 + (12 + 3 * 4) * 10  # layers x (K and V) x heads x D x 4 bytes x slots, and tables
    with pytest.warns(UserWarning, match="more batches than one.*execution.batch_gib"):
        pairs = decoded(network, ids, policies, batch_gib=2.5 * row / 2**30)
    assert [each.batch_rows for each in pairs] == [2, 2, 2, 2]
    with pytest.warns(UserWarning, match="more batches than one"):
        alone = decoded(network, ids, policies, batch_gib=0)
    assert [each.batch_rows for each in alone] == [1, 1, 1, 1]
    same(pairs, together)
    same(alone, together)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded(network, ids, policies, batch_gib=4 * row / 2**30)


def test_near_choices_counts_a_second_token_within_rounding():
    logits = torch.tensor([[1.0, 2.0, 2.0 - 5e-5], [1.0, 2.0, 2.0 - 5e-4], [3.0, 3.0, 3.0]])
    assert near_choices(logits).tolist() == [1, 0, 1]


def test_near_tie_counts_another_candidate_within_rounding_of_the_victim():
    positions = torch.tensor([[0, 1, 2, -1]]).view(1, 1, 1, 4)
    evict = torch.ones(1, 1, 1, dtype=torch.bool)
    victim = torch.zeros(1, 1, 1, dtype=torch.long)

    def count(*utility, protected=None, evict=evict):
        guard = None if protected is None else torch.tensor(protected).view(1, 1, 1, 4)
        return near_tie(torch.tensor(utility).view(1, 1, 1, 4), positions, guard, victim, evict).tolist()

    assert count(0.5, 0.5 + 2e-5, 0.9, 0.0) == [1]
    assert count(0.5, 0.5 + 2e-4, 0.9, 0.0) == [0]
    assert count(0.5, 0.5, 0.9, 0.0) == [1]  # equal by rounding, perhaps: as two keys and their mean
    assert count(0.0, 0.0, 0.9, 0.0) == [0]  # zeros are told apart by their positions, in any batch
    assert count(0.5, 0.9, 0.9, 0.5 + 2e-5) == [0]  # the last slot is empty
    assert count(0.5, 0.5 + 2e-5, 0.9, 0.0, protected=[False, True, False, False]) == [0]
    assert count(0.5, 0.5 + 2e-5, 0.9, 0.0, evict=~evict) == [0]


def test_near_ties_are_a_matter_of_shared_batches():
    network, ids = models.tiny(), models.prompt(30)
    head = network.lm_head.weight.data
    head[48:96], head[96] = head[:48] * (1 + 1e-7), 0  # every token but one has a double: choices are near ties
    alone = decoded(network, ids, POLICIES[:1])[0]
    shared = decoded(network, ids, [POLICIES[0], preset("inertiakv", alpha=0.3, tokens=9)])[0]
    assert alone.near_ties == 0
    assert shared.near_ties >= 12  # tokens 3 to 14 came out of the shared batch


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"scoring": "magic"}, "execution.scoring='magic'.*'fused'"),
        ({"compiled": 1}, "execution.compiled=1"),
        ({"prefill_chunk": 0}, "execution.prefill_chunk=0"),
        ({"batch_gib": -1.0}, "execution.batch_gib=-1.0"),
    ],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Execution(**bad)


def test_the_kernel_is_refused_where_it_cannot_run():
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    with pytest.raises(ValueError, match="execution.scoring='kernel' needs a CUDA device"):
        decoded(models.tiny(), models.prompt(30), scoring="kernel")


def test_describe_names_only_what_differs_from_the_default():
    assert Execution(batch_gib=3).describe() == {}
    assert Execution("recompute", True, 64).describe() == {
        "scoring": "recompute",
        "compiled": True,
        "prefill_chunk": 64,
    }


@pytest.mark.slow
def test_the_compiled_step_is_the_plain_step():
    network, ids = models.tiny(layers=2), models.prompt(30)
    mixed = [POLICIES[0], POLICIES[2], Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(8))]
    torch._dynamo.utils.counters.clear()
    same(decoded(network, ids, mixed, compiled=True), decoded(network, ids, mixed))
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


def test_near_choices_are_among_the_tokens_that_may_be_chosen():
    """An EOS that is out of the question hides no tie of the others, and one beyond the vocabulary is no error."""
    request = Request(Stopping(4, eos_token_id=[0, 500], min_new_tokens=2))
    row = GrowingRow(request, TokensPrompt(torch.tensor([[1]])), preset("full_cache"), (0,))
    chosen, near = choose([row], torch.tensor([[9.0, 1.0, 2.0, 2.0]]))
    assert (chosen, near.tolist()) == ([2], [1])
