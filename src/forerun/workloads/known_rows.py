"""Names of workloads that need their table to be understood, and those that cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.workloads.row_values import Row

# (source, workload) -> the name in the zoo, where a name alone would mean something else.
SAME: Mapping[tuple[str, str], str] = {
    ("gavel", "transformer"): "transformer-multi30k",
    ("gavel", "resnet18"): "resnet18-cifar10",
    ("gavel", "lm"): "lstm-wikitext2",
}
_OTHER_UNITS = (
    "the batch of this row counts sequences and its rate counts {unit}, so that its step time is "
    "not that of a step"
)
_OTHER_RATES: Mapping[str, str] = {
    "transformerxlbase": "tokens", "transformerxllarge": "tokens", "gnmt": "tokens",
    "tacotron2": "mel frames", "waveglow": "audio samples",
}  # fmt: skip
_UNSTATED: Mapping[str, str] = {
    "languagemodeling-bert": "its sequence length (128, 384 or 512) is not stated; fill in seq_len",
    "languagemodeling-bert-biobert": "its sequence length is not stated; fill in seq_len",
    "languagemodeling-transformer-xl": "whether it is the base or the large model is not stated",
    "translation-transformer": "its batch (tokens or sentences) is not stated",
    "mlperf-transformer": "its batch counts tokens in some rows and sentences in others",
    "run-clm": "which model the script trained is not stated",
    "recommendation": "the structure of this recommender is not published with the runs",
    "a3c": "reinforcement learning: a step is mostly simulation, which is no graph",
}
_OTHER_NETWORKS: Mapping[tuple[str, str], str] = {
    ("dlperf", "wide-deep"): "this table's has 2 or 7 hidden layers, which no column says",
    ("dlperf", "insightface"): "this table's backbone differs by row, which no column says",
}
# What a name in `languagemodeling-bert` rows means, once the sequence length is known.
_WITH_SEQ_LEN: Mapping[str, str] = {
    "languagemodeling-bert": "bert-large", "languagemodeling-bert-biobert": "bert-base",
}  # fmt: skip


def known_name(row: Row) -> str:
    """Return the name to look up in the zoo for a row."""
    name, source = row.text("workload"), row.text("source").lower()
    if row.text("seq_len") and name in _WITH_SEQ_LEN:
        return _WITH_SEQ_LEN[name]
    return SAME.get((source, name.lower())) or name


def refusal(row: Row) -> str:
    """Return why a row's workload cannot be told from its columns, "" where it can."""
    name = row.text("workload").lower()
    if row.text("source").lower() == "lambda" and name in _OTHER_RATES:
        return _OTHER_UNITS.format(unit=_OTHER_RATES[name])
    other = _OTHER_NETWORKS.get((row.text("source").lower(), name))
    if other:
        return f"workload {name!r}: {other}; the zoo's is another network"
    if name in _UNSTATED and not (name in _WITH_SEQ_LEN and row.text("seq_len")):
        return f"workload {name!r}: {_UNSTATED[name]}"
    return ""
