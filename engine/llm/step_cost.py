"""How long a step takes on this machine: learned from the steps themselves.

The model is linear in the shape of a step: a constant, and one coefficient each per decode row,
prefill token, and row-times-context of either kind. Steps fall into cells of similar shape; each
cell remembers its typical step, and the coefficients are fitted to all cells (least squares on
the relative error, none negative). A long stretch of equal steps thus never washes out what was
learned about others. On top, the *load* says how much slower the last steps were than fitted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from engine.llm.sequence import Sequence

_NUM_FEATURES = 5
_MAX_CELLS = 256
_REFIT_EVERY = 16  # observations
_FIRST_REFITS = 8  # observations from the start, each followed by a fit
_SWEEPS = 60  # of coordinate descent; it starts from the last fit
_SMOOTHING = 0.2  # weight of the newest step in its cell
_OUTLIER = 3.0  # a step counts as at most so many times its cell's typical one
_RIDGE = 1e-6  # decides between coefficients that the data cannot tell apart
_LOAD_WINDOW = 9
_LOAD_RANGE = (0.5, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What decides the duration of a step.

    ``num_decodes`` counts rows: one per decoding sequence and one per draft. A row attends to
    all tokens before it; ``decode_context`` and ``prefill_context`` sum those over the rows of
    either kind.
    """

    num_decodes: int = 0
    num_prefill_tokens: int = 0
    decode_context: int = 0
    prefill_context: int = 0

    @classmethod
    def of_decodes(cls, sequences: Collection[Sequence]) -> StepShape:
        """One decode row for each."""
        context = sum(sequence.num_tokens for sequence in sequences)
        return cls(num_decodes=len(sequences), decode_context=context)

    def with_decode(self, context: int, num_rows: int = 1) -> StepShape:
        """One more sequence with ``num_rows`` rows, the first of which sees ``context`` tokens."""
        return replace(
            self,
            num_decodes=self.num_decodes + num_rows,
            decode_context=self.decode_context + num_rows * context,
        )

    def with_chunk(self, start: int, num_tokens: int) -> StepShape:
        """One more prefill chunk, at positions ``start`` onwards."""
        rows_context = num_tokens * start + num_tokens * (num_tokens + 1) // 2
        return replace(
            self,
            num_prefill_tokens=self.num_prefill_tokens + num_tokens,
            prefill_context=self.prefill_context + rows_context,
        )


class StepCost:
    """Predicts milliseconds; 0.0 until something was observed. Memory is bounded. What steps cost
    with cheaper weights is learned apart."""

    def __init__(self) -> None:
        self._usual, self._cheaper = _CostModel(), _CostModel()
        self._model = self._usual

    def use_cheaper(self, is_on: bool) -> None:
        """With which weights steps run from now on."""
        self._model = self._cheaper if is_on else self._usual

    def observe(self, shape: StepShape, step_ms: float) -> None:
        """A step of that shape took ``step_ms``; what is not positive is ignored."""
        self._model.observe(shape, step_ms)

    def predict(self, shape: StepShape) -> float:
        return self._model.predict(shape)

    def affordable_chunk(
        self, shape: StepShape, *, start: int, limit: int, budget_ms: float
    ) -> int:
        """The largest chunk of at most ``limit`` tokens, from position ``start``, that can join
        ``shape`` within ``budget_ms``.

        Prefill never exceeds twice the largest that was seen: a cost that was only extrapolated
        must not stall everybody.
        """
        return self._model.affordable_chunk(shape, start, limit, budget_ms)


class _CostModel:
    """Of steps with one set of weights; see :class:`StepCost`."""

    def __init__(self) -> None:
        self._cells: OrderedDict[tuple[int, ...], _Cell] = OrderedDict()
        self._coefficients = [0.0] * _NUM_FEATURES
        self._load: deque[float] = deque(maxlen=_LOAD_WINDOW)
        self._load_factor = 1.0
        self._num_observed = 0
        self._most_prefill = 0  # tokens in one step, seen so far

    def observe(self, shape: StepShape, step_ms: float) -> None:
        if step_ms <= 0.0:
            return
        fitted_ms = self._fitted(shape)
        if fitted_ms > 0.0:
            self._note_load(step_ms / fitted_ms)
        self._most_prefill = max(self._most_prefill, shape.num_prefill_tokens)
        self._note_cell(shape, step_ms)
        self._num_observed += 1
        if self._num_observed <= _FIRST_REFITS or self._num_observed % _REFIT_EVERY == 0:
            self._fit()

    def predict(self, shape: StepShape) -> float:
        return self._fitted(shape) * self._load_factor

    def affordable_chunk(self, shape: StepShape, start: int, limit: int, budget_ms: float) -> int:
        low, high = 0, min(limit, 2 * self._most_prefill - shape.num_prefill_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(shape.with_chunk(start, middle)) <= budget_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _fitted(self, shape: StepShape) -> float:
        features = _features(shape)
        return sum(c * x for c, x in zip(self._coefficients, features, strict=True))

    def _note_load(self, ratio: float) -> None:
        self._load.append(ratio)
        median = sorted(self._load)[len(self._load) // 2]
        self._load_factor = min(max(median, _LOAD_RANGE[0]), _LOAD_RANGE[1])

    def _note_cell(self, shape: StepShape, step_ms: float) -> None:
        features = _features(shape)
        key = tuple(int(feature).bit_length() for feature in features)
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = _Cell(features, step_ms)
            if len(self._cells) > _MAX_CELLS:
                self._cells.popitem(last=False)
        else:
            cell.add(features, step_ms)
            self._cells.move_to_end(key)

    def _fit(self) -> None:
        """Non-negative least squares by coordinate descent on the normal equations."""
        size = range(_NUM_FEATURES)
        matrix = [[0.0] * _NUM_FEATURES for _ in size]
        vector = [0.0] * _NUM_FEATURES
        for cell in self._cells.values():
            row = [feature / cell.step_ms for feature in cell.features]
            for i in size:
                vector[i] += row[i]
                for j in size:
                    matrix[i][j] += row[i] * row[j]
        coefficients = self._coefficients
        for _ in range(_SWEEPS):
            for i in size:
                if matrix[i][i] == 0.0:
                    continue
                rest = sum(matrix[i][j] * coefficients[j] for j in size if j != i)
                coefficients[i] = max(0.0, (vector[i] - rest) / (matrix[i][i] * (1 + _RIDGE)))


class _Cell:
    """The typical step of one cell."""

    def __init__(self, features: tuple[float, ...], step_ms: float) -> None:
        self.features = features
        self.step_ms = step_ms

    def add(self, features: tuple[float, ...], step_ms: float) -> None:
        step_ms = min(step_ms, _OUTLIER * self.step_ms)
        self.step_ms += _SMOOTHING * (step_ms - self.step_ms)
        self.features = tuple(
            old + _SMOOTHING * (new - old) for old, new in zip(self.features, features, strict=True)
        )


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        float(shape.num_decodes),
        float(shape.num_prefill_tokens),
        float(shape.decode_context),
        float(shape.prefill_context),
    )
