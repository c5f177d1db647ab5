"""Rows of networks that read tables: recommenders."""

from __future__ import annotations

from forerun.domain.workload import Length
from forerun.workloads.zoo.network import UNVERIFIED, Network, later

_CRITEO_BYTES = 4.0 * 40


def _dlrm(name: str, rows: float, dataset: str, source: str, *aliases: str) -> Network:
    return Network(
        name, "dlrm", later("recommenders", "dlrm", name), source,
        f"click-through rate on {dataset}", sample="row",
        optimizer="adagrad" if name == "dlrm-dcnv2" else "sgd", dataset=dataset,
        dataset_size=rows, input_bytes=_CRITEO_BYTES, batch=65_536,
        length=Length("epochs", 1, "MLPerf Training results: 0.7 to 1 epoch"), aliases=aliases,
    )  # fmt: skip


NETWORKS: tuple[Network, ...] = (
    _dlrm("dlrm-criteo-1tb", 4_195_197_692.0, "Criteo 1TB",
          "Naumov et al. 2019; MLPerf Training v0.7 to v2.1", "dlrm", "mlperf-dlrm"),
    _dlrm("dlrm-dcnv2", 4_195_197_692.0, "Criteo 1TB multi-hot",
          "Wang et al. 2021; MLPerf Training v3.0 on", "mlperf-dlrm-dcnv2"),
    _dlrm("dlrm-criteo-kaggle", 39_291_958.0, "Criteo Kaggle",
          "Naumov et al. 2019, published example", "dlrm-kaggle"),
    Network(
        "wide-deep", "wide-deep", later("recommenders", "wide_deep"),
        "Cheng et al. 2016; sizes of a published benchmark on Criteo",
        "wide and deep parts over 2.3 million categories", sample="row", optimizer="adam",
        dataset="Criteo Kaggle", dataset_size=36_672_493.0, input_bytes=_CRITEO_BYTES,
        batch=16_384, length=Length("epochs", 1, UNVERIFIED),
        notes=("assumed: seven hidden layers of 1024 with dropout", "dataset size is unverified"),
        aliases=("wide-and-deep", "widedeep"),
    ),
    Network(
        "neumf-ml20m", "ncf", later("recommenders", "neumf", "neumf-ml20m"),
        "He et al. 2017; MLPerf Training v0.5 sizes", "neural matrix factorisation, MovieLens-20M",
        sample="row", optimizer="adam", dataset="MovieLens-20M", dataset_size=99_308_850.0,
        input_bytes=12.0, batch=1_048_576, length=Length("epochs", 13, UNVERIFIED),
        notes=("an epoch has four negatives for each rating",),
        aliases=("ncf", "ncf-ml20m", "mlperf-ncf", "recommendation-ncf"),
    ),
    Network(
        "neumf-ml1m", "ncf", later("recommenders", "neumf", "neumf-ml1m"),
        "He et al. 2017, with 32 factors", "neural matrix factorisation, MovieLens-1M",
        sample="row", optimizer="adam", dataset="MovieLens-1M", dataset_size=4_970_845.0,
        input_bytes=12.0, batch=256, length=Length("epochs", 20, UNVERIFIED),
        notes=("assumed: 32 factors and layers of 256, 128, 64 and 32",
               "an epoch has four negatives for each rating"),
        aliases=("neumf", "ncf-ml1m"),
    ),
)  # fmt: skip
