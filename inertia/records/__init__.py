"""Records: what a cell is, how it survives a crash, and how its rows are read back.

A file of records is in `store`, writing to it in `writer`, how far cells are in `progress`; reading in `read` (cells),
`rows` (columns) and `frame` (tables), the row's columns in `schema`. `provenance` says where numbers come from;
`wandb_mirror` shows them elsewhere and is never the only copy.
"""

from inertia.records.attempts import DuplicateRow
from inertia.records.export import export, write_experiment
from inertia.records.frame import read_samples, sample_table
from inertia.records.identity import cell_id, identity_sha256
from inertia.records.listing import listed
from inertia.records.lock import CellLocked
from inertia.records.progress import Damage, IdentityClash
from inertia.records.read import Cell, Unsealed
from inertia.records.rows import canonical_hash, read_cells
from inertia.records.schema import SCHEMA_VERSION, NewerSchema, sample_schema
from inertia.records.store import CorruptRecord, OldRecords
from inertia.records.verify import verify
from inertia.records.writer import CellWriter, Incomplete, open_cell

__all__ = [
    "SCHEMA_VERSION",
    "Cell",
    "CellLocked",
    "CellWriter",
    "CorruptRecord",
    "Damage",
    "DuplicateRow",
    "IdentityClash",
    "Incomplete",
    "NewerSchema",
    "OldRecords",
    "Unsealed",
    "canonical_hash",
    "cell_id",
    "export",
    "identity_sha256",
    "listed",
    "open_cell",
    "read_cells",
    "read_samples",
    "sample_schema",
    "sample_table",
    "verify",
    "write_experiment",
]
