"""Language models of the zoo in one table: GPT, Llama, BERT, T5, mixtures of experts, their kin."""

from __future__ import annotations

from forerun.workloads.zoo import encoder_models, expert_models, gpt_models, llama_models
from forerun.workloads.zoo.entry import Entry

ENTRIES: dict[str, Entry] = {
    **gpt_models.ENTRIES,
    **llama_models.ENTRIES,
    **expert_models.ENTRIES,
    **encoder_models.ENTRIES,
}
