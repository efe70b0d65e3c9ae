"""The tokenizer of the tiny models: byte-level BPE, trained in the process on a fixed text of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inertia.backbones.tiny import VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, TURN, END, PAD = "<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"  # ids 0 to 3

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Words whose pieces are worth a token; most frequent first, and the order is part of the recipe.
WORDS = """
the of and to in is that it for was on are as with be this have from or had by but not what all were
when we there can an your which their said if do will each about how up out them then she many some
so these would other into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very after words called
just where most know text question answer given following context passage below above document
memorize number numbers special magic key value variable assign list word common frequent appear
often coded important information hidden within asked later quiz one three four five six seven eight
nine ten grass green sky blue sun yellow here go back again table house river mountain city garden
window letter paper story music winter summer morning evening small large young old red white black
quick slow bright dark deep high low open closed last next best good great new work day night year
hand place world life part case week company system program problem fact school state family student
group country point home room mother area money right study book eye job business issue side kind
head service friend father power hour game line end member law car community name president team
minute idea body nothing ago lead social understand whether
""".split()

SYLLABLES = """
ing er ed ion ly al ness ment able ful less ous ive ity est ish pre con dis com re un in de en ex
per pro sub inter an at or ar on is it us um ac ad am ap as ba be bi bo ca ce ch ci co cu da di do
el em es et fa fe fi fo ga ge gi go ha he hi ho ic id il im ir ja jo ke ki la le li lo ma me mi mo
na ne ni no ol om op ou pa pe pi po qu ra ri ro sa se sh si so st su ta te th ti to tr tu ul ur va
ve vi vo wa we wi wo ya yo ze
""".split()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the tiny models: `VOCABULARY` ids, a ChatML-like template, BOS 0, EOS 2.

    Template and tokenizer both put BOS first, as Llama 3's do: whoever tokenises a rendered template must
    add no special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[BOS, TURN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_training_lines(), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[TURN],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _training_lines() -> list[str]:
    """Return the text: frequent words more often, so that the merges prefer them."""
    ranked = [" ".join([f"{word} {word.capitalize()}"] * (2 + 200 // (rank + 10))) for rank, word in enumerate(WORDS)]
    return [
        *(f" {line}" for line in ranked),
        *(f"{syllable * 3}" for syllable in SYLLABLES),
        "\n\n",
        ". ",
        ": ",
    ]
