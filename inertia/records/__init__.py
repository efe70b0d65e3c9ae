"""Records: what a cell is, how it survives a crash, and how its rows are read back.

A cell's life is in `cell`, what cells that decode together record at once in `group`, reading in `read`, `frame` and
`columnar`, the row's columns in `schema`. `provenance` says where numbers come from; `wandb_mirror` shows them
elsewhere and is never the only copy.
"""

from inertia.records.cell import CellWriter, IdentityClash, Incomplete, open_cell
from inertia.records.columnar import sample_table
from inertia.records.frame import read_samples, samples
from inertia.records.identity import cell_id, identity_sha256, readable
from inertia.records.journal import CorruptRecord
from inertia.records.layout import DuplicateCell
from inertia.records.lock import CellLocked
from inertia.records.read import Cell, Unsealed, canonical_hash, export, read_cell, read_cells
from inertia.records.schema import SCHEMA_VERSION, NewerSchema, sample_schema
from inertia.records.settle import DuplicateRow

__all__ = [
    "SCHEMA_VERSION",
    "Cell",
    "CellLocked",
    "CellWriter",
    "CorruptRecord",
    "DuplicateCell",
    "DuplicateRow",
    "IdentityClash",
    "Incomplete",
    "NewerSchema",
    "Unsealed",
    "canonical_hash",
    "cell_id",
    "export",
    "identity_sha256",
    "open_cell",
    "read_cell",
    "read_cells",
    "read_samples",
    "readable",
    "sample_schema",
    "sample_table",
    "samples",
]
