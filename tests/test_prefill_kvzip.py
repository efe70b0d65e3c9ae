"""KVzip: what is read again, and what its reading scores, against literal loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia.backbones.tiny import tiny_model
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.prefill import kvzip
from inertia.prefill.capture import scores_of
from inertia.prefill.kvzip import KVzip
from inertia.prefill.replay import Replay, ReplayLayer, Wording, frame

INF = float("inf")


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def rendered(tokenizer, context):
    """Ids of the template's opening and a context."""
    return encode(tokenizer, "<|bos|><|im_start|>user\n" + context)


CONTEXT = "the sky is blue and the grass is green and the river goes down to the house in the garden "


def test_the_frame_is_what_the_template_puts_around_the_user(tokenizer):
    around = frame(tokenizer, True)
    assert tokenizer.decode(around.opening) == "<|bos|><|im_start|>user\n"
    assert tokenizer.decode(around.closing) == "<|im_end|>\n<|im_start|>assistant\n"
    assert frame(tokenizer, False) == ((), tuple(encode(tokenizer, "\n")))


def test_chunks_cover_the_context_and_nothing_else(tokenizer):
    ids = rendered(tokenizer, CONTEXT)
    opening = len(encode(tokenizer, "<|bos|><|im_start|>user\n"))
    part = KVzip(chunk=10)
    found = part.replays(tokenizer, ids, chat_template=True)
    assert len(found) > 1
    assert [replay.start for replay in found] == list(range(opening, len(ids), 10))
    assert [replay.end for replay in found] == [*(replay.start for replay in found[1:]), len(ids)]
    closing = "<|im_end|>\n<|im_start|>assistant\n"
    for index, replay in enumerate(found):
        chunk = ids[replay.start : replay.end]
        if index == 0:
            request = encode(tokenizer, part.wording.first)
        else:
            request = encode(tokenizer, part.wording.later) + ids[replay.start - 8 : replay.start]
        assert list(replay.ids) == [*request, *encode(tokenizer, closing), *chunk]
        assert replay.opening == opening


def test_a_lead_in_never_reaches_into_the_opening(tokenizer):
    ids = rendered(tokenizer, CONTEXT)
    second = KVzip(chunk=3).replays(tokenizer, ids, chat_template=True)[1]
    request = encode(tokenizer, Wording().later)
    assert list(second.ids[len(request) : len(request) + 3]) == ids[second.start - 3 : second.start]
    assert second.ids[len(request) + 3 :][:1] == frame(tokenizer, True).closing[:1]


def test_without_a_template_the_whole_prompt_is_replayed(tokenizer):
    ids = encode(tokenizer, CONTEXT)
    (replay,) = KVzip().replays(tokenizer, ids, chat_template=False)
    assert (replay.start, replay.end, replay.opening) == (0, len(ids), 0)
    assert list(replay.ids) == [*encode(tokenizer, Wording().first), *encode(tokenizer, "\n"), *ids]


def test_the_wording_is_a_setting(tokenizer):
    ids = encode(tokenizer, CONTEXT)
    part = KVzip(chunk=16, wording=Wording("again ", "more ", 2))
    first, second, *_ = part.replays(tokenizer, ids, chat_template=False)
    assert list(first.ids[: len(encode(tokenizer, "again "))]) == encode(tokenizer, "again ")
    more = encode(tokenizer, "more ")
    assert list(second.ids[: len(more) + 2]) == more + ids[14:16]


def test_no_tokenizer_no_replay(tokenizer):
    with pytest.raises(ValueError, match="needs a tokenizer"):
        KVzip().replays(None, [1, 2, 3], chat_template=False)
    bare = tiny_tokenizer()
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        KVzip().replays(bare, [1, 2, 3], chat_template=True)
    bare.chat_template = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}"
    with pytest.raises(ValueError, match="holds the user's words 2 times"):
        KVzip().replays(bare, [1, 2, 3], chat_template=True)


def test_the_prefill_alone_scores_nothing():
    with pytest.raises(ValueError, match="scores by replay"):
        KVzip().score(None)


# -------------------------------------------------------------------------------------------------- scores


def draw_layer(seed, heads, groups, tokens, read, start, end, opening, softcap):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(heads * groups, read, 4, generator=generator)
    keys = 2 * torch.randn(heads, tokens + read, 4, generator=generator)
    replay = Replay(tuple(range(read)), start, end, opening)
    return ReplayLayer(query, keys, 0.7, replay, 0, 1, softcap)


def slow(part, layer):
    heads, total, _ = layer.keys.shape
    read = layer.query.shape[1]
    tokens = total - read
    groups = layer.query.shape[0] // heads
    _, start, end, opening = layer.replay
    attended = opening if part.keep_opening else min(part.sinks, start)
    forced = max(part.sinks, opening) if part.keep_opening else part.sinks
    scores = []
    for head in range(heads):
        best = [0.0] * tokens
        for g in range(groups):
            for i in range(read):
                places = [*range(attended), *range(start, end), *range(tokens, tokens + i + 1)]
                query, keys = layer.query[head * groups + g, i].double(), layer.keys[head].double()
                logits = [0.7 * float(query @ keys[p]) for p in places]
                if layer.softcap is not None:
                    logits = [math.tanh(x / layer.softcap) * layer.softcap for x in logits]
                powers = [math.exp(x) for x in logits]
                # Sinks come first, so a sink that lies in the chunk counts for the chunk.
                for place, power in list(zip(places, powers, strict=True))[attended : attended + end - start]:
                    best[place] = max(best[place], power / sum(powers))
        scores.append([INF if p < forced else best[p] for p in range(tokens)])
    return scores


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(3, 3), (2, 4), (1, 1)]),
    tokens=st.integers(1, 10),
    read=st.integers(1, 7),
    bounds=st.tuples(st.integers(0, 4), st.integers(3, 9)),
    opening=st.integers(0, 5),
    keep_opening=st.booleans(),
    softcap=st.sampled_from([None, 1.5]),
    rows=st.sampled_from([1, 2, 256]),
)
def test_scores_are_the_literal_ones(
    seed, shape, tokens, read, bounds, opening, keep_opening, softcap, rows
):
    start = min(bounds[0], tokens - 1)
    end = min(max(bounds[1], start + 1), tokens)
    layer = draw_layer(seed, *shape, tokens, read, start, end, min(opening, start), softcap)
    part = KVzip(sinks=2, keep_opening=keep_opening)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvzip, "ROWS", rows)
        found = part.score_replay(layer)
    assert found.dtype == torch.float32
    for row, expected in zip(found.tolist(), slow(part, layer), strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_opening_is_scored_zero_or_always_kept(tokenizer):
    model = tiny_model("llama", query_heads=8, kv_heads=2)
    ids = rendered(tokenizer, CONTEXT)
    opening = len(frame(tokenizer, True).opening)
    assert opening > 4
    for keep_opening, edge in ((False, 0.0), (True, INF)):
        part = KVzip(chunk=16, keep_opening=keep_opening)
        scores = scores_of(model, ids, part, part.replays(tokenizer, ids, chat_template=True))
        for score in scores:
            assert bool((score[:, :4] == INF).all())
            assert bool((score[:, 4:opening] == edge).all())
            assert bool((score[:, opening:] > 0).all()) and bool((score[:, opening:] <= 1).all())


def test_masked_and_removed_keep_the_same():
    scores = list(torch.rand(3, 2, 30, generator=torch.Generator().manual_seed(0)))
    kept = [KVzip(mode=mode).keep(scores, 9) for mode in ("removed", "masked")]
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))
