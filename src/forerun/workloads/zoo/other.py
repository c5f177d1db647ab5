"""Detection, segmentation, diffusion, recommendation, speech and small networks of the zoo."""

from __future__ import annotations

from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.sound_rows import NETWORKS as SOUND
from forerun.workloads.zoo.table_rows import NETWORKS as TABLES
from forerun.workloads.zoo.view_rows import NETWORKS as VIEWS

ENTRIES: dict[str, Entry] = {network.name: network.entry() for network in (*VIEWS, *TABLES, *SOUND)}
