"""What the ranks of a stage are to each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streamsynth.errors import invalid_value


@dataclass(frozen=True, slots=True)
class Layout:
    """`data_parallel` replicas, each with requests of its own, of `ulysses_degree` ranks that divide the sequence of
    one request between them. The ranks of a replica follow one another."""

    data_parallel: int
    ulysses_degree: int

    @classmethod
    def infer(cls, num_gpus: int, *, ulysses_degree: int = 1, data_parallel_size: int | None = None) -> Layout:
        """All ranks are in use: those that do not divide a sequence are replicas. Raises INVALID_VALUE where they do
        not come out even, or where `data_parallel_size` says another number."""
        if not 1 <= ulysses_degree <= num_gpus or num_gpus % ulysses_degree:
            raise invalid_value("ulysses_degree", ulysses_degree, f"a divisor of num_gpus, which is {num_gpus}")
        inferred = num_gpus // ulysses_degree
        if data_parallel_size not in (None, inferred):
            limit = f"{inferred}, what num_gpus {num_gpus} by ulysses_degree {ulysses_degree} comes to, or left out"
            raise invalid_value("data_parallel_size", data_parallel_size, limit)
        return cls(inferred, ulysses_degree)

    @property
    def size(self) -> int:
        return self.data_parallel * self.ulysses_degree

    def replica(self, rank: int) -> int:
        return rank // self.ulysses_degree

    def ranks_of(self, replica: int) -> range:
        """The first of them hands out what the replica has made."""
        return range(replica * self.ulysses_degree, (replica + 1) * self.ulysses_degree)

    def sharing(self) -> list[list[int]]:
        """The groups of ranks that share host memory: one of every replica; without replicas, all that share a
        sequence."""
        if self.data_parallel == 1:
            return [list(range(self.size))]
        return [list(range(place, self.size, self.ulysses_degree)) for place in range(self.ulysses_degree)]
