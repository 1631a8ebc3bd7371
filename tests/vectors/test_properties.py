"""Laws of SUM's mathematics, searched for counterexamples: surgery, basis, top-k, module."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcilbench.federation.server import tree_nbytes
from fcilbench.vectors.module import (
    Modulators,
    Packed,
    accumulated,
    cut,
    elect,
    from_half,
    project_out,
    restore,
    to_half,
    unify,
)
from fcilbench.vectors.surgery import Trimmed, coefficients, merge, surgery_matrix
from fcilbench.vectors.surgery import gram as gram_of

settings.register_profile("laws", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("laws")

TARGETS = st.sampled_from(["both", "positive", "negative", "none"])
SEEDS = st.integers(0, 2**31)


@st.composite
def clients(draw, dtype=torch.float64, width=60):
    """Rows with a common direction of any strength, of any scale, some of them zero."""
    count, seed = draw(st.integers(1, 8)), draw(SEEDS)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, width, generator=generator, dtype=torch.float64)
    rows += draw(st.floats(-3, 3)) * torch.randn(width, generator=generator, dtype=torch.float64)
    rows *= 10.0 ** draw(st.integers(-6, 3))
    rows[torch.rand(count, generator=generator) < 0.1] = 0.0
    return rows.to(dtype)


def gram(rows):
    return gram_of(rows if isinstance(rows, Trimmed) else Trimmed(rows, None))


def printed_formula(rows, target):
    """Refined vectors by N (N - 1) projections, as Kim and Do 2026 print them (equation 5)."""
    refined = rows.clone()
    for i, row in enumerate(rows):
        for j, other in enumerate(rows):
            inner = float(row @ other)
            wanted = {"both": True, "positive": inner > 0, "negative": inner < 0, "none": False}[target]
            if j != i and wanted and float(other @ other) > 0:
                refined[i] -= inner / float(other @ other) * other
    return refined


def basis_of(vectors):
    """Returns the basis of some task vectors, and the coefficients of each."""
    basis, kept = [], []
    for vector in vectors:
        refined, own = project_out(vector, basis)
        basis.append(refined)
        kept.append(own)
    return basis, kept


def close(left, right, relative):
    return float((left - right).abs().max()) <= relative * max(float(right.abs().max()), 1e-300)


@given(clients(), TARGETS)
def test_closed_form_equals_the_printed_formula(rows, target):
    expected = printed_formula(rows, target)
    matrix = surgery_matrix(gram(rows), target)
    merged, _ = merge(coefficients(matrix), Trimmed(rows, None))
    scale = float(rows.abs().max()) * len(rows) ** 2
    assert (matrix @ rows - expected).abs().max() <= 1e-12 * scale
    assert (merged - expected.sum(0)).abs().max() <= 1e-11 * scale


@given(clients(), TARGETS)
def test_gram_of_refined_vectors_needs_no_refined_vectors(rows, target):
    expected = printed_formula(rows, target)
    products = gram(rows)
    matrix = surgery_matrix(products, target)
    scale = float(rows.abs().max()) ** 2 * rows.shape[1] * len(rows) ** 2
    assert (matrix @ products @ matrix.T - expected @ expected.T).abs().max() <= 1e-11 * scale


@given(clients(torch.float32), TARGETS, SEEDS)
def test_client_order_changes_nothing(rows, target, seed):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))

    def merged(given_rows):
        vectors = Trimmed(given_rows, 2.0)
        return merge(coefficients(surgery_matrix(gram(vectors), target)), vectors)[0]

    weights = coefficients(surgery_matrix(gram(Trimmed(rows, 2.0)), target)).abs().max()
    scale = float(weights) * float(rows.abs().max()) * len(rows)
    assert (merged(rows) - merged(rows[order])).abs().max() <= 1e-6 * max(scale, 1e-300)


@given(st.integers(2, 10), SEEDS)
def test_identical_clients(count, seed):
    row = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    weights = coefficients(surgery_matrix(gram(row.repeat(count, 1))))
    assert weights.tolist() == [2.0 - count] * count


@given(clients(torch.float32, 5000), st.integers(60, 5000), st.floats(0.5, 5.0))
def test_streaming_equals_one_pass(rows, step, threshold):
    whole, apart = Trimmed(rows, threshold, step=5000), Trimmed(rows, threshold, step=step)
    # A coordinate at the very edge of the threshold may fall on either side; all others agree exactly.
    one, two = (torch.cat([piece.clone() for _, piece in vectors.pieces()], dim=1) for vectors in (whole, apart))
    differing = one != two
    assert int(differing.sum()) <= 1
    if not differing.any():
        assert close(gram(apart), gram(whole), 1e-6)
        weights = coefficients(surgery_matrix(gram(whole)))
        assert close(merge(weights, apart)[0], merge(weights, whole)[0], 1e-6)
        assert int(whole.zeroed) == int(apart.zeroed)


@given(st.integers(2, 8), SEEDS)
def test_accumulated_vectors_and_increments_give_the_same_basis(tasks, seed):
    deltas = torch.randn(tasks, 100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bases = []
    for vectors in (deltas, deltas.cumsum(0)):
        basis, kept = basis_of(vectors)
        bases.append(torch.stack(basis))
        assert torch.allclose(torch.stack([accumulated(bases[-1], k, kept) for k in range(tasks)]), vectors, atol=1e-12)
    assert torch.allclose(bases[0], bases[1], atol=1e-10)


@given(SEEDS)
@settings(max_examples=5)
def test_fifty_tasks_stay_orthogonal(seed):
    """Accumulated vectors of one run are nearly parallel: the hard case for Gram-Schmidt in float32."""
    generator = torch.Generator().manual_seed(seed)
    deltas = torch.randn(50, 20_000, generator=generator) * 1e-4 / torch.arange(1, 51)[:, None]
    basis, _ = basis_of((deltas + 3e-5 * torch.randn(20_000, generator=generator)).cumsum(0))
    unit = torch.nn.functional.normalize(torch.stack(basis).double(), dim=1)
    assert float((unit @ unit.T).fill_diagonal_(0.0).abs().max()) < 1e-5


@given(st.integers(1, 5), SEEDS)
def test_elected_values_are_the_extreme_of_the_winning_side(tasks, seed):
    stack = torch.randn(tasks, 30, generator=torch.Generator().manual_seed(seed)).mul(2).round()
    for p, value in enumerate(elect(stack).tolist()):
        entries = [float(entry) for entry in stack[:, p] if entry != 0]
        balance = sum(1 if entry > 0 else -1 for entry in entries)
        winners = [entry for entry in entries if entry * balance > 0]
        assert value == (max(winners, key=abs) if winners else 0.0)


@given(st.integers(1, 4), st.integers(1, 300), st.sampled_from(["accumulated", "refined", None]), SEEDS)
def test_packing_loses_nothing_but_the_rounding_to_half_precision(tasks, size, source, seed):
    generator = torch.Generator().manual_seed(seed)
    basis, kept = basis_of(torch.randn(tasks, size, generator=generator).cumsum(0) * 1e-5)
    unified = unify(basis, [cut(vector, 0.2) for vector in basis], "count", torch.device("cpu"))
    modulators = Modulators(basis, kept, [1.0] * tasks, unified, source)
    packed = Packed.of(modulators, modulators.scales())
    half = from_half(*to_half(unified))
    for k in range(tasks):
        mask = torch.cat([piece for _, piece in modulators.masks(k)])
        assert torch.equal(packed.task_vector(k), restore(half, mask, float(packed.scales[k])))
    support = int((unified != 0).sum())
    assert tree_nbytes(vars(packed)) == -(-size // 8) + 2 * support + tasks * (-(-support // 8) + 4) + 16
