"""One example under the policies of several cells; where that fails, under fewer of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inertia import backbones
from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark
from inertia.experiments.cells import Cell
from inertia.measure.answers import Answer, TaskRunner

if TYPE_CHECKING:
    from inertia.backbones import Backbone
    from inertia.eviction.execution import Execution

log = logging.getLogger(__name__)


def check(cell: Cell) -> None:
    """Accept a cell whose examples can be asked of its model; its tokenizer says so before the weights are loaded.

    Raises:
        ValueError: the length, the window or the data are not such.
    """
    from inertia.benchmarks.render import Renderer

    backbone = cell.config.backbone
    renderer = Renderer(backbones.load_tokenizer(backbone), backbone.chat_template)
    cell.benchmark.check(cell.task, cell.length, renderer, backbone.context_window)


def task_runner(backbone: Backbone, bench: Benchmark, task: str, execution: Execution | None = None) -> TaskRunner:
    """Return what answers a task's examples with a backbone."""
    from inertia.benchmarks.render import Renderer

    renderer = Renderer(backbone.tokenizer, backbone.chat_template)
    return TaskRunner(backbone, bench.renderer(task, renderer, backbone.context_window), bench, execution)


def decode_example(
    cells: list[Cell], example: Example, runner: TaskRunner
) -> list[tuple[list[Cell], Sequence[Answer | Exception]]]:
    """Decode one example under the policies of several cells; where that fails, each half of them by itself.

    Returns:
        The cells that were decoded together and, for each, its answer or the exception that stopped it.
    """
    try:
        return [(cells, answers(cells, example, runner))]
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other examples with it
        if len(cells) == 1:
            return [(cells, [error])]
        log.warning("%s failed for %d policies at once (%s); splitting them", example.id, len(cells), error)
        half = len(cells) // 2
        return [part for some in (cells[:half], cells[half:]) for part in decode_example(some, example, runner)]


def answers(cells: list[Cell], example: Example, runner: TaskRunner) -> list[Answer]:
    """Answer one example under the policies of several cells, and measure their fidelity where it is asked for."""
    policies = [cell.config.policy for cell in cells]
    seed = example_seed(cells[0].config.seed, example.id)
    found = runner.answers(example, policies, seed)
    if "fidelity" in cells[0].config.benchmark.metrics:
        from inertia.measure.fidelity import with_fidelity

        found = with_fidelity(runner, example, policies, found, seed)
    return found


def example_seed(seed: int, example_id: str) -> int:
    """Return the seed of one example: it depends on nothing else of the run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{example_id}".encode()).digest()[:7], "big")
