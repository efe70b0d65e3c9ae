"""Question answering over documents, most of which do not matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.questions import Question, Questions
from inertia.benchmarks.ruler.wording import qa_wording
from inertia.benchmarks.seeding import official_shuffle


@dataclass(frozen=True)
class QuestionAnswering:
    """A question, the documents that answer it, and distractors.

    Attributes:
        data: Name of the data set, `squad` or `hotpot`.
        max_new_tokens: Decoding limit.
        skip_long: Whether a document that does not fit gives way to the next ones, until none is left that fits;
            else the example ends before it.

    Source: RULER `qa.py`. The question's own documents come first (SQuAD: one paragraph; HotpotQA: its ten),
    then the other paragraphs of its article, then any others; the chosen ones stand in the order of the
    official shuffle. Questions are asked in the order of the file.

    Deviations: of one draw, a larger example holds all documents of a smaller one (official: drawn anew for every
    size). A long document is skipped for shorter ones (official: ten documents fewer are drawn anew until they fit,
    which leaves short lengths half empty too). Where all documents are used the example stops growing (official: all
    of them again, the answer too). The size is found for each example, not once per task.
    """

    data: str
    max_new_tokens: int = 32
    skip_long: bool = True

    def prepare(self, setting: Setting) -> Callable[..., Draw]:
        """Return the function that draws the example of question `number`; one unit is one document.

        Raises:
            ValueError: If the setting has no questions.
        """
        texts, wording = setting.texts, qa_wording()
        if not isinstance(texts, Questions):
            raise ValueError(f"question answering needs questions ({self.data}), got {type(texts).__name__}")
        # Unlike `split`, the empty line before the question counts as context.
        before, _, after = wording.template.partition("{context}\n\n")

        @cache
        def size(document: str, digits: int) -> int:
            return setting.count("\n\n" + wording.document.format(i="1" * digits, document=document))

        def filled(order: list[int], question: Question) -> list[int]:
            """The documents in an order of which the first ones fill the room, those too long for it last."""
            frame = f"{before}\n\n{after.format(query=question.text)}{wording.prefix}"
            room, taken, left = setting.room - setting.count(frame), [], []
            for index in order:
                document, digits = texts.documents[index], len(str(len(taken) + 1))
                # What has no room for an empty document is not worth a look at the others.
                fits = size("", digits) < room and size(document, digits) <= room
                if fits or len(taken) < len(question.gold):
                    taken.append(index)
                    room -= size(document, digits)
                else:
                    left.append(index)
            return taken + left

        def draw(stream: Stream, number: int = 0) -> Draw:
            question = texts.questions[number]
            apart = {*question.gold, *question.related}
            related = stream("related").sample(question.related, len(question.related))
            # Every document costs more than one token, so no more than that are ever asked for.
            most = min(len(texts.documents), setting.room)
            others = [i for i in stream("others").sample(range(len(texts.documents)), most) if i not in apart]
            order = [*question.gold, *related, *others]
            if self.skip_long:
                order = filled(order, question)

            def build(units: int) -> Parts:
                shown = official_shuffle(order[:units])
                documents = (
                    wording.document.format(i=i, document=texts.documents[index])
                    for i, index in enumerate(shown, start=1)
                )
                return Parts(
                    context=before + "\n\n".join(documents) + "\n\n",
                    question=after.format(query=question.text),
                    answer_prefix=wording.prefix,
                    references=question.answers,
                    metadata={
                        "units": units,
                        "question": number,
                        "depths": [i / units for i, index in enumerate(shown) if index in question.gold],
                        "all_documents": units == len(texts.documents),
                    },
                )

            return Draw(build, smallest=len(question.gold), largest=len(order))

        return draw
