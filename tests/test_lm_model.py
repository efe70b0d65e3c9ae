"""The lm-eval model against lm-eval's own HF model, and where it must differ from it."""

from __future__ import annotations

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from inertia.eviction.budget import Ratio
from inertia.lm_eval.model import InertiaLM, likelihood
from inertia.lm_eval.prompts import context_chars, fitted, templated
from inertia.paths import config_dir

TEXTS = (
    "The grass is green. The sky is blue. What is the sun?",
    "one two three four five",
    "Question: how many days has a week?\nAnswer:",
    " leading and trailing blanks ",
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny backbone with a window of 96 tokens."""
    file = tmp_path_factory.mktemp("backbone") / "small.yaml"
    text = (config_dir() / "backbone" / "tiny-random.yaml").read_text()
    file.write_text(text.replace("context_window: 8192", "context_window: 96"))
    return str(file)


@pytest.fixture(scope="module")
def full(small):
    return InertiaLM(backbone=small)


@pytest.fixture(scope="module")
def reference(full):
    return HFLM(pretrained=full.backbone.model, tokenizer=full.tokenizer, device="cpu", batch_size=1, max_length=96)


def request(*arguments, kind="generate_until", doc=None, number=0, task="t"):
    return Instance(kind, doc or {}, arguments, 0, metadata=(task, number, 1))


def generation(text, **settings):
    return request(text, {"max_gen_toks": 24, "until": [], "do_sample": False, **settings})


def answer(model, text, **settings):
    return model.generate_until([generation(text, **settings)], disable_tqdm=True)[0]


# ---------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("text", TEXTS)
def test_full_cache_answers_are_those_of_lm_evals_hf_model(full, reference, text):
    wanted = reference.generate_until([generation(text)], disable_tqdm=True)
    assert full.generate_until([generation(text)], disable_tqdm=True) == wanted
    assert len(wanted[0]) > 10


def test_an_answer_ends_at_its_earliest_stop_string(full, reference):
    whole = answer(full, TEXTS[0])
    # Two stop strings in the answer, the later one first in the list, and one that only the prompt holds.
    stops = [whole[30:33], whole[12:15], "grass"]
    cut = answer(full, TEXTS[0], until=stops)
    assert cut == whole[: min(whole.index(stop) for stop in stops[:2])]
    assert [cut] == reference.generate_until([generation(TEXTS[0], until=stops)], disable_tqdm=True)
    assert full.telemetry["t", 0]["stop"] == "string"
    assert full.telemetry["t", 0]["new_tokens"] < 24


def test_a_stop_string_that_is_a_special_token_ends_the_answer_too(full):
    from inertia.decoding.generation import generate

    ids = torch.tensor([full.tok_encode(TEXTS[0])])
    (free,) = generate(full.backbone.model, ids, [full.settings.policy], 24)
    token = "<|pad|>"
    model, number = full.backbone.model, full.tokenizer.convert_tokens_to_ids(token)
    weight = model.get_output_embeddings().weight
    kept = weight[number].clone()
    try:
        # The pad token's logit becomes that of the sixth token of the free answer, and a little more.
        weight[number] = weight[free.tokens[5]] * 1.01
        answer(full, TEXTS[0])
        untouched = full.telemetry["t", 0]
        answer(full, TEXTS[0], until=[token])
        stopped = full.telemetry["t", 0]
        answer(full, TEXTS[0], until=[token], min_new_tokens=12)
        later = full.telemetry["t", 0]
    finally:
        weight[number] = kept
    assert untouched["stop"] == "length"
    assert stopped["stop"] == "eos" and stopped["new_tokens"] <= 6
    assert later["new_tokens"] >= 12


def test_what_the_policy_did_is_noted_for_each_answer(small):
    model = InertiaLM(backbone=small, method="inertiakv", tokens=9)
    text = "The sky is blue. " * 4
    answers = model.generate_until(
        [request(text, {"max_gen_toks": 8}, number=3), request(text + "Why?", {"max_gen_toks": 1}, number=4)]
    )
    first, second = model.telemetry["t", 3], model.telemetry["t", 4]
    length = len(model.tok_encode(text))
    assert (first["prompt_tokens"], first["budget_tokens"], first["retained_tokens"]) == (length, 9, 9)
    assert first["evictions"] == length + 7 - 9
    # One token comes from the prefill: nothing was decoded, nothing evicted.
    assert (second["new_tokens"], second["evictions"], second["retained_tokens"]) == (1, 0, second["prompt_tokens"])
    assert answers[0] != answer(InertiaLM(backbone=small), text, max_gen_toks=8)
    info = model.get_model_info()["inertia"]
    assert info["policy"]["budget"] == {"kind": "tokens", "count": 9}
    assert (info["answers"], info["hit_limit"], info["truncated"]) == (2, 2, 0)


def test_bad_generation_settings_are_refused_before_the_first_answer(small, monkeypatch):
    model = InertiaLM(backbone=small)
    monkeypatch.setattr(InertiaLM, "_answer", lambda *_: pytest.fail("an answer was begun"))
    with pytest.raises(ValueError, match="task t: .*num_beams"):
        model.generate_until([generation("a"), generation("b", num_beams=4)])


def test_random_scorers_draw_by_document_and_seed(small):
    def tokens(seed, number):
        model = InertiaLM(backbone=small, method="random", tokens=5, seed=seed)
        return model.generate_until([request(TEXTS[0], {"max_gen_toks": 24}, number=number)], disable_tqdm=True)

    assert tokens(0, 0) == tokens(0, 0)
    assert len({*tokens(0, 0), *tokens(0, 1), *tokens(1, 0)}) == 3


# ---------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("text", ["hello", "<|bos|>hello"])
def test_bos_stands_once(full, text):
    ids = full.tok_encode(text)
    assert ids.count(full.tokenizer.bos_token_id) == 1 and ids[0] == full.tokenizer.bos_token_id
    assert full.tok_encode("hello", add_special_tokens=False) == ids[1:]


def test_bos_stands_once_behind_the_template_and_answers_are_the_hf_models(full, reference):
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is blue?"}]
    text = full.apply_chat_template(chat)
    assert text == reference.apply_chat_template(chat)
    assert full.tok_encode(text).count(full.tokenizer.bos_token_id) == 1
    assert answer(full, text) == reference.generate_until([generation(text)], disable_tqdm=True)[0]


def test_a_begun_answer_is_kept_to_the_letter(full, reference):
    chat = [{"role": "user", "content": "What is blue?"}, {"role": "assistant", "content": " The answer is: "}]
    text = full.apply_chat_template(chat, add_generation_prompt=False)
    assert text == full.apply_chat_template(chat[:1]) + " The answer is: "
    assert text == reference.apply_chat_template(chat, add_generation_prompt=False)


class Told:
    """A tokenizer whose template is a function of the messages."""

    is_fast, chat_template = True, "a template"

    def __init__(self, render):
        self.render = render

    def apply_chat_template(self, messages, **_):
        return self.render(messages)


def lines(messages):
    return "".join(f"[{each['role']}]{each['content'].strip()}" for each in messages) + "[go]"


def refusing(messages):
    if messages[0]["role"] == "system" or any(
        a["role"] == b["role"] for a, b in zip(messages, messages[1:], strict=False)
    ):
        raise RuntimeError("roles must alternate")
    return lines(messages)


def dropping(messages):
    return lines([each for each in messages if each["role"] != "system"])


@pytest.mark.parametrize("render", [refusing, dropping])
def test_a_system_message_that_a_template_does_not_take_goes_in_front_of_the_user(render):
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
    assert templated(Told(render), chat, True) == "[user]Be short.\n\nWhy?[go]"
    assert templated(Told(lines), chat, True) == "[system]Be short.[user]Why?[go]"
    begun = [*chat, {"role": "assistant", "content": " So "}]
    assert templated(Told(render), begun, False) == "[user]Be short.\n\nWhy?[go] So "


def test_messages_that_a_template_refuses_are_an_error():
    with pytest.raises(ValueError, match="must alternate"):
        templated(Told(refusing), [{"role": "user", "content": "a"}] * 2, True)


def test_a_base_model_has_no_template(full, monkeypatch):
    monkeypatch.setattr(full.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="leave out --apply_chat_template"):
        full.apply_chat_template([{"role": "user", "content": "a"}])


def test_a_prompt_too_long_for_the_window_loses_its_start_but_not_bos(full):
    text = "one two three four five six seven eight nine ten " * 20
    whole = full.tok_encode(text)
    answer(full, text, max_gen_toks=24)
    telemetry = full.telemetry["t", 0]
    assert len(whole) > 96 and telemetry["truncated"] and telemetry["prompt_tokens"] == 96 - 24
    asked = fitted(full.tokenizer, text, None, 72)
    assert list(asked.ids) == [whole[0], *whole[-71:]]
    fits = fitted(full.tokenizer, text, None, len(whole))
    assert list(fits.ids) == whole and not fits.truncated
    one_less = fitted(full.tokenizer, text, None, len(whole) - 1)
    assert list(one_less.ids) == [whole[0], *whole[2:]] and one_less.truncated
    assert full.get_model_info()["inertia"]["truncated"] == 1
    # A document that its task had to cut counts too.
    full.generate_until([request("short", {"max_gen_toks": 1}, doc={"kv_truncated": True})], disable_tqdm=True)
    assert full.telemetry["t", 0]["truncated"]
    with pytest.raises(ValueError, match="max_gen_toks"):
        answer(full, text, max_gen_toks=96)


def test_the_context_is_found_in_the_prompt_and_moves_with_a_cut(full):
    doc = {"context": "  one two three four.", "question": "five?"}
    text = "Read: one two three four.\nfive? six"
    chars = context_chars(doc, text, "context")
    assert text[:chars] == "Read: one two three four."
    asked = fitted(full.tokenizer, text, chars, 99)
    shown = full.tokenizer.decode(asked.ids[: asked.context_end], skip_special_tokens=True)
    # "." and the line break may be one token; then it belongs to the question.
    assert text[:chars].startswith(shown) and len(shown) >= chars - 1
    cut = fitted(full.tokenizer, text, chars, len(asked.ids) - 2)
    assert cut.ids[1 : cut.context_end] == asked.ids[3 : asked.context_end]
    assert fitted(full.tokenizer, text, chars, 3).context_end is None
    # BOS alone is no context; BOS and one token of it are.
    question = len(asked.ids) - asked.context_end
    assert fitted(full.tokenizer, text, chars, question + 1).context_end is None
    assert fitted(full.tokenizer, text, chars, question + 2).context_end == 2
    assert context_chars({"context": "absent"}, text, "context") is None
    assert context_chars({}, text, "context") is None and context_chars({"context": ""}, text, "context") is None


def test_context_only_compression_needs_a_context(small):
    model = InertiaLM(backbone=small, method="key_norm", compression_ratio=0.5)
    doc = {"context": "The sky is blue. " * 4}
    text = doc["context"] + "What is blue?"
    model.generate_until([request(text, {"max_gen_toks": 4}, doc=doc)], disable_tqdm=True)
    telemetry = model.telemetry["t", 0]
    assert telemetry["context_tokens"] and telemetry["prefill_budget_tokens"] == telemetry["context_tokens"] // 2
    with pytest.raises(ValueError, match="question_visible=True"):
        model.generate_until([request(text, {"max_gen_toks": 4})], disable_tqdm=True)
    seen = InertiaLM(backbone=small, method="key_norm", compression_ratio=0.5, question_visible=True)
    seen.generate_until([request(text, {"max_gen_toks": 4})], disable_tqdm=True)
    assert seen.telemetry["t", 0]["prefill_budget_tokens"] == seen.telemetry["t", 0]["prompt_tokens"] // 2


# ---------------------------------------------------------------------------------------- likelihoods


def choices(kind="loglikelihood", doc=None):
    pairs = [(TEXTS[0], " blue"), (TEXTS[0], " a young house"), ("one two ", "three"), ("", "four five")]
    return [request(*pair, kind=kind, doc=doc, number=i) for i, pair in enumerate(pairs)]


def close(found, wanted):
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in wanted], rel=1e-5, abs=1e-4)


def test_full_cache_likelihoods_are_those_of_lm_evals_hf_model(full, reference):
    long = request("word " * 200, " end of it", kind="loglikelihood")
    wanted = reference.loglikelihood([*choices(), long], disable_tqdm=True)
    close(full.loglikelihood([*choices(), long], disable_tqdm=True), wanted)
    best = reference.generate_until([generation(TEXTS[0], max_gen_toks=3)], disable_tqdm=True)[0]
    (found,) = full.loglikelihood([request(TEXTS[0], best, kind="loglikelihood")], disable_tqdm=True)
    close([found], reference.loglikelihood([request(TEXTS[0], best, kind="loglikelihood")], disable_tqdm=True))


@pytest.mark.parametrize("text", [TEXTS[0], "many words come and go " * 40])
def test_full_cache_rolling_likelihoods_are_those_of_lm_evals_hf_model(full, reference, text):
    asked = [request(text, kind="loglikelihood_rolling")]
    wanted = reference.loglikelihood_rolling(asked, disable_tqdm=True)
    assert full.loglikelihood_rolling(asked, disable_tqdm=True) == pytest.approx(wanted, rel=1e-5)


def test_likelihoods_behind_a_compressed_context(small, full):
    doc = {"context": "The sky is blue. The grass is green. " * 2}
    asked = [
        request(doc["context"] + "What is blue? The", continuation, kind="loglikelihood", doc=doc)
        for continuation in (" sky", " young house")
    ]
    wanted = full.loglikelihood(asked, disable_tqdm=True)
    keep_all = InertiaLM(backbone=small, method="key_norm", compression_ratio=0.0)
    close(keep_all.loglikelihood(asked, disable_tqdm=True), wanted)
    found = InertiaLM(backbone=small, method="key_norm", compression_ratio=0.7).loglikelihood(asked, disable_tqdm=True)
    # Even the first token of a continuation, which no decode-time policy could change, is another one's.
    assert abs(found[0][0] - wanted[0][0]) > 0.01 and abs(found[1][0] - wanted[1][0]) > 0.01


def test_a_continuation_is_greedy_if_every_token_is():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    wanted = torch.log_softmax(logits, -1)
    assert likelihood(logits, [1, 0]) == (pytest.approx(float(wanted[0, 1] + wanted[1, 0])), True)
    assert likelihood(logits, [1, 2]) == (pytest.approx(float(wanted[0, 1] + wanted[1, 2])), False)


def test_a_compressed_context_too_long_for_the_window_loses_its_start(small):
    doc = {"context": "The sky is blue. " * 40}
    asked = request(doc["context"] + "What is blue? The", " young house", kind="loglikelihood", doc=doc)
    model = InertiaLM(backbone=small, method="key_norm", compression_ratio=0.5)
    ((value, _),) = model.loglikelihood([asked], disable_tqdm=True)
    assert -200 < value < 0


def test_likelihoods_under_eviction_are_refused_without_loading_a_model(small, monkeypatch):
    monkeypatch.setattr("inertia.backbones.load", lambda *_: pytest.fail("a model was loaded"))
    model = InertiaLM(backbone=small, method="inertiakv")
    with pytest.raises(ValueError, match="every budget would get the full cache's"):
        model.loglikelihood(choices())
    with pytest.raises(ValueError, match="every budget would get the full cache's"):
        model.loglikelihood_rolling([request("a", kind="loglikelihood_rolling")])
    with pytest.raises(ValueError, match="use_cache"):
        model.set_cache_hook(None)


def test_the_model_is_made_from_lm_evals_arguments(small):
    made = InertiaLM.create_from_arg_string(
        f"backbone={small},method=inertiakv,compression_ratio=0.75",
        {"batch_size": 4, "max_batch_size": None, "device": "cpu"},
    )
    assert made.settings.policy.budget == Ratio(0.75)
    # What model_args say wins over the flag, where lm-eval itself would raise.
    made = InertiaLM.create_from_arg_obj({"backbone": small, "device": "cpu"}, {"device": "cuda:0", "batch_size": 1})
    assert made.device == "cpu"


# ---------------------------------------------------------------------------------------- batches


def several():
    """Requests of two settings and mixed lengths, in no order."""
    made = []
    for number, words in enumerate((30, 4, 12, 25, 7, 3, 18, 9)):
        text = " ".join(["The", "sky", "is", "blue."] * 8).split(" ")[:words]
        made.append(request(" ".join(text), {"max_gen_toks": 6 + number % 2, "until": ["zz"]}, number=number))
    return made


@pytest.mark.parametrize(
    "method",
    [{"method": "full_cache"}, {"method": "inertiakv", "tokens": 9}, {"method": "random_per_head", "tokens": 7}],
)
@pytest.mark.parametrize("size", [2, 3, "8", "auto"])
def test_answers_and_telemetry_do_not_depend_on_the_batch_size(small, method, size):
    alone, together = InertiaLM(backbone=small, **method), InertiaLM(backbone=small, batch_size=size, **method)
    assert together.generate_until(several(), disable_tqdm=True) == alone.generate_until(several(), disable_tqdm=True)
    assert list(together.telemetry) != [] and together.telemetry.keys() == alone.telemetry.keys()
    for key, wanted in alone.telemetry.items():
        found = together.telemetry[key]
        same = wanted.keys() - {"prefill_seconds", "decode_seconds", "batch_rows", "near_ties"}
        assert {name: found[name] for name in same} == {name: wanted[name] for name in same}
    assert max(each["batch_rows"] for each in together.telemetry.values()) > 1
    assert {each["batch_rows"] for each in alone.telemetry.values()} == {1}


@pytest.mark.parametrize("size", [0, -1, "many", 2.5])
def test_a_batch_size_is_a_count_or_auto(small, size):
    with pytest.raises(ValueError, match="batch_size"):
        InertiaLM(backbone=small, batch_size=size)


@pytest.mark.parametrize("method", [{"method": "full_cache"}, {"method": "inertiakv", "tokens": 9}])
def test_repeated_requests_are_samples_of_one_prompt(small, method, monkeypatch):
    hot = {"do_sample": True, "temperature": 2.0, "max_gen_toks": 8}
    first, second = request(TEXTS[0], hot, number=0), request(TEXTS[2], hot, number=1)
    model = InertiaLM(backbone=small, batch_size=2, **method)
    found = model.generate_until([first] * 3 + [second] * 3, disable_tqdm=True)
    assert len(set(found)) == 6
    # The same draws in another batch, in another order, and with fewer samples.
    other = InertiaLM(backbone=small, batch_size=8, **method)
    assert other.generate_until([second] * 3 + [first] * 3, disable_tqdm=True) == found[3:] + found[:3]
    assert other.generate_until([first, first], disable_tqdm=True) == found[:2]
    assert InertiaLM(backbone=small, seed=1, **method).generate_until([first], disable_tqdm=True) != found[:1]


def test_a_repeated_greedy_request_is_decoded_once(small, monkeypatch):
    model, calls, real = InertiaLM(backbone=small), [], InertiaLM._answer
    monkeypatch.setattr(InertiaLM, "_answer", lambda *given: calls.append(len(given[1])) or real(*given))
    one = generation(TEXTS[0])
    assert len(set(model.generate_until([one, one, one], disable_tqdm=True))) == 1 and calls == [1]
