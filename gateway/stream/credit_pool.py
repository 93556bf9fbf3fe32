"""The places in the models' queues, and which stream's credit stands for how many of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Overloaded

# Idle streams must not hold what others need: a stream begins with a few places, one in sixteen of
# those that are free at most, and gets more when it has used them up.
START_PLACES = 4
_START_SHARE = 16
_UNBOUNDED = 1 << 30  # of a model whose queue is not known
_RETRY_AFTER_S = 1.0


class CreditPool:
    """``num_places`` in one model's queue, each promised once.

    A stream may have ``most / num_places`` times as many as are free or its own, half of them at
    most: the busier the model, the less for each, and something is left for who comes next
    (dynamic thresholds: Choudhury, Hahne, IEEE/ACM Transactions on Networking 6, 1998).
    """

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.num_free = num_places

    def open(self, most: int) -> CreditShare:
        """A share with one place, which wants ``most`` at most.

        Raises:
            Overloaded: not one is free.
        """
        if self.num_free == 0:
            raise Overloaded(
                f"all {self.num_places} places of the model are promised to other streams",
                retry_after_s=_RETRY_AFTER_S,
            )
        return CreditShare(self, most)


class CreditShare:
    """The places of one stream: one at least, until it is closed."""

    def __init__(self, pool: CreditPool, most: int) -> None:
        self._pool = pool
        self._most = most
        self._factor = min(0.5, most / pool.num_places)
        self._is_closed = False
        self.num_places = 1
        pool.num_free -= 1

    @property
    def start(self) -> int:
        """How many places to begin with."""
        return max(1, min(self._most, START_PLACES, self._pool.num_free // _START_SHARE))

    @property
    def fair(self) -> int:
        """How many places it should have at most as things are."""
        in_reach = self._pool.num_free + self.num_places
        return max(1, min(self._most, int(self._factor * in_reach)))

    def resize(self, num_places: int) -> None:
        """Take what is missing, which is free as long as ``fair`` is heeded, or give back."""
        if not self._is_closed:
            self._pool.num_free -= num_places - self.num_places
            self.num_places = num_places

    def close(self) -> None:
        """Nothing of the stream can get into the queue any more; idempotent."""
        self.resize(0)
        self._is_closed = True


class CreditPools:
    """One pool per model, by the number of its places; models that are not named share one that
    is as good as endless."""

    def __init__(self, num_places: Mapping[str, int] | None = None) -> None:
        self._pools = {name: CreditPool(number) for name, number in (num_places or {}).items()}
        self._others = CreditPool(_UNBOUNDED)

    def of(self, model: str) -> CreditPool:
        return self._pools.get(model, self._others)
