"""Samples: every id once an epoch, whatever the workers and batches are and whenever they change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.measure.elastic.samples import SampleStream


@given(
    size=st.integers(1, 60), seed=st.integers(0, 9),
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(5, 90)), min_size=1, max_size=20),
)  # fmt: skip
def test_each_id_comes_once_an_epoch_across_changes(
    size: int, seed: int, steps: list[tuple[int, int]]
) -> None:
    stream, position, seen = SampleStream(size, seed), 0, []
    for workers, batch in steps:
        shares = [stream.share(position, batch, rank, workers) for rank in range(workers)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        taken = sorted(int(i) for share in shares for i in share)
        assert taken == sorted(stream.ids(position, batch).tolist())
        seen += stream.ids(position, batch).tolist()
        position += batch
    for epoch in range(position // size):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert len(set(seen[position // size * size :])) == position % size


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    stream = SampleStream(50, 1)
    first, second = stream.ids(0, 50).tolist(), stream.ids(50, 50).tolist()
    assert first != second
    assert first != SampleStream(50, 2).ids(0, 50).tolist()
    assert SampleStream(50, 1).ids(30, 40).tolist() == first[30:] + second[:20]
