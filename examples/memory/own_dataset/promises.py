"""Tests of memory of your own: promises made to several people, some of which are taken back."""

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.datasets.answers.matching import mentions
from manyhands.workloads.memory.datasets.base import BaseDataset, DatasetArguments, last_of, some_of

PEOPLE = ("Agnes", "Boris", "Clara", "Dmitri", "Elsa", "Frank", "Grete", "Henry")
THINGS = ("a book", "a cake", "a kite", "a map", "a plant", "a shelf")


class PromiseArguments(DatasetArguments):
    promises: int = 4


class Promises(BaseDataset):
    """Who is promised what; the last promise is taken back. A point for each of the others that the answer names, less one if it
    names the one that was taken back."""

    id = "promises"
    default_name = "Promises"
    about = "Makes promises, takes one back, and asks who still waits for something."
    default_question = "To whom do I still owe something? Name these people, and nobody else."
    Arguments = PromiseArguments

    def example(self, number: int, draws: Draws) -> Definition:
        people = some_of(draws, PEOPLE, self.arguments.promises)
        told = [f"I have promised {person} {draws.pick(THINGS)}." for person in people]
        told.append(f"Forget what I promised {people[-1]}.")
        return self.scripted(number, told, (self.question,), [people[:-1], people[-1]])

    def score(self, definition: Definition, questions: object, answers: list[str]) -> Evaluation:
        owed, settled = definition.expected_responses
        named = [person for person in owed if mentions(last_of(answers), person)]
        points = len(named) - mentions(last_of(answers), settled)
        return Evaluation(max(0, points), len(owed), (f"named: {', '.join(named) or 'nobody'}",))

    def right_answer(self, definition: Definition, number: int) -> str:
        return ", ".join(definition.expected_responses[0])
