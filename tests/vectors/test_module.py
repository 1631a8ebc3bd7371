"""Temporal surgery and the deployed module by hand: basis, storage, sparsification, election, scales, packing."""

import pytest
import torch

from fcilbench.federation.server import tree_nbytes
from fcilbench.vectors.module import (
    Modulators,
    accumulated,
    count_of,
    cut,
    elect,
    from_half,
    products,
    project_out,
    read,
    stack,
    store,
    to_half,
    unify,
)

CPU = torch.device("cpu")
KINDS = ("fp32", "fp16", "int8", "topk")


def build(vectors, kind="fp32", keep=0.5):
    basis, kept = [], []
    for vector in vectors:
        refined, coefficients = project_out(vector, basis)
        basis.append(store(refined, kind, keep))
        kept.append(coefficients)
    return basis, kept


def dense(stored):
    return read(stored, slice(0, 10**9 if isinstance(stored, torch.Tensor) else stored["size"]))


def rebuild(index, basis, kept):
    return accumulated(torch.stack([dense(vector) for vector in basis[: index + 1]]), index, kept)


# ---------------------------------------------------------------- temporal surgery


def test_worked_example():
    taus = [torch.tensor([1.0, 0, 0]), torch.tensor([1.0, 1, 0]), torch.tensor([1.0, 1, 1])]
    assert torch.stack(build(taus)[0]).tolist() == torch.eye(3).tolist()
    assert torch.stack(build(list(torch.eye(3)))[0]).tolist() == torch.eye(3).tolist()


def test_zero_basis_vector_is_skipped_and_the_coefficients_rebuild():
    taus = [torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, -1.0, 0.5])]
    basis, kept = build(taus)
    assert torch.equal(basis[1], taus[1])
    for k, tau in enumerate(taus):
        assert torch.allclose(rebuild(k, basis, kept), tau, atol=1e-6)


def test_input_is_not_changed_and_dot_is_wide():
    vector = torch.tensor([1.0, 1.0])
    project_out(vector, [torch.tensor([1.0, 0.0])])
    assert vector.tolist() == [1.0, 1.0]
    inner, norms = products(torch.tensor([1e8, 1.0]), [torch.tensor([1e8, 1.0]), torch.tensor([0.0, 0.0])])
    assert inner.tolist() == norms.tolist() == [1e16 + 1.0, 0.0]


def test_max_basis_projects_on_the_closest_only():
    basis = [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])]
    refined, kept = project_out(torch.tensor([1.0, 3.0, 1.0]), basis, limit=1)
    assert refined.tolist() == [1.0, 0.0, 1.0]
    assert kept.tolist() == [0.0, 3.0]


@pytest.mark.parametrize("size", [7, 100_000])
def test_numbers_1_a_vector_in_the_span_of_the_basis_leaves_exactly_nothing(size):
    """In float32 a residue of relative norm 1e-8 would be left, which votes in the election like any other vector."""
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randn(2, size, generator=generator)
    basis, _ = build([first, first + second])
    for vector in (first + second, 3 * first - second, basis[1]):
        refined, kept = project_out(vector, basis)
        assert refined.abs().sum() == 0
        assert torch.allclose(kept @ torch.stack(basis).double(), vector.double(), atol=1e-5)
    small = first + second + 1e-4 * torch.randn(size, generator=generator)
    assert project_out(small, basis)[0].abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_rebuild_the_task_vector_from_a_lossy_basis(kind):
    taus = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3)).cumsum(0)
    basis, kept = build(taus, kind)
    for k, tau in enumerate(taus):
        # What is lost is the rounding of this vector alone: the projections act on the basis as it is kept.
        lost = project_out(tau, basis[:k])[0] - dense(basis[k])
        assert torch.allclose(rebuild(k, basis, kept) + lost, tau, atol=1e-4)


# ---------------------------------------------------------------- storage


def test_fp16_keeps_eleven_bits_of_tiny_vectors():
    # 1e-6 itself has one bit in fp16; under the power-of-two scale it has eleven.
    vector = torch.tensor([3e-6, -1e-6, 0.0, 2.0**-20])
    back = dense(store(vector, "fp16"))
    assert (back - vector).abs().max() <= 2**-11 * 3e-6
    assert back[3] == 2.0**-20
    assert dense(store(torch.zeros(3), "fp16")).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("largest", [1.0, 1.5, 2.0**-17, 3e-30, 60000.0])
def test_to_half_uses_the_whole_range(largest):
    values, exponent = to_half(torch.tensor([largest, 0.0]))
    assert 2**14 < float(values[0]) <= 2**15
    assert float(from_half(values, exponent)[0]) == pytest.approx(largest, rel=2**-11)


def test_int8_by_hand():
    # Two blocks: absmax 127 gives steps of 1, absmax 254 steps of 2.
    vector = torch.zeros(300)
    vector[:3] = torch.tensor([127.0, 1.4, -2.6])
    vector[256:259] = torch.tensor([-254.0, 3.0, 0.9])
    back = dense(store(vector, "int8"))
    assert back[:3].tolist() == [127.0, 1.0, -3.0]
    assert back[256:259].tolist() == [-254.0, 4.0, 0.0]  # 3 is 1.5 steps, and halves round to even


@pytest.mark.parametrize("kind", KINDS)
def test_slices_read_what_the_whole_holds(kind):
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    stored = store(vector, kind, 0.3)
    whole = dense(stored)
    for part in (slice(0, 1), slice(100, 700), slice(255, 257), slice(999, 1000), slice(5, 5)):
        assert torch.equal(read(stored, part), whole[part])
    assert torch.equal(stack([stored, vector], slice(3, 9)), torch.stack([whole[3:9], vector[3:9]]))


@pytest.mark.parametrize(
    ("kind", "nbytes"), [("fp32", 4 * 2560), ("fp16", 2 * 2560), ("int8", 2560 + 4 * 10), ("topk", 8 * 256)]
)
def test_bytes(kind, nbytes):
    assert tree_nbytes(store(torch.randn(2560), kind, 0.1)) == nbytes


# ---------------------------------------------------------------- sparsification


def top_k(vector, fraction):
    return dense(store(vector, "topk", fraction))


def test_counts_exactly_and_breaks_ties_by_index():
    vector = torch.tensor([1.0, -3.0, 2.0, -2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert top_k(vector, 0.3).tolist() == [0, -3, 2, -2, 0, 0, 0, 0, 0, 0]
    assert top_k(vector, 1.0).tolist() == vector.tolist()
    assert int((top_k(vector, 0.01) != 0).sum()) == 1
    assert count_of(0.29, 100) == int((top_k(torch.arange(1.0, 101.0), 0.29) != 0).sum()) == 29
    assert (count_of(0.05, 10), count_of(1.0, 7)) == (1, 7)
    assert top_k(torch.tensor([1e-42, 1e-40, -1e-38, 0.0]), 0.5).tolist() == pytest.approx([0.0, 1e-40, -1e-38, 0.0])


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5, 0.999])
def test_equals_a_stable_sort(fraction):
    # Few distinct values, so that the threshold has thousands of ties, over several pieces.
    vector = torch.randn(300_000, generator=torch.Generator().manual_seed(0)).mul(4).round().div(4)
    order = vector.abs().argsort(descending=True, stable=True)[: count_of(fraction, len(vector))]
    expected = torch.zeros_like(vector)
    expected[order] = vector[order]
    assert torch.equal(top_k(vector, fraction), expected)


def test_pieces_of_any_size_keep_the_same_entries():
    vector = torch.tensor([1.0, -1.0, 2.0, 1.0, 0.0, -1.0])
    chosen = cut(vector, 0.5)  # 2 and the first two ones
    apart = torch.cat([chosen.keeps(vector[start : start + 2], start) for start in (0, 2, 4)])
    assert apart.tolist() == [True, True, True, False, False, False]


# ---------------------------------------------------------------- election, masks and scales


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("count", [2, -2, 5, 0]), ("mass", [2, -2, 5, 3]), ("strict", [0, 0, 5, 0]), ("off", [2, -2, 5, 2])],
)
def test_election(rule, expected):
    assert elect(torch.tensor([[1.0, -2, 0, 3], [2.0, 1, 0, -1], [-1.0, -1, 5, 0]]), rule).tolist() == expected


def test_unify_sparsifies_each_vector_by_its_own_cut():
    # Half of each: (3, 2, 0, 0) and (0, 0, -5, 4).
    basis = [torch.tensor([3.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, -5.0, 4.0])]
    cuts = [cut(vector, 0.5) for vector in basis]
    assert unify(basis, cuts, "count", CPU).tolist() == [3.0, 2.0, -5.0, 4.0]
    assert unify(basis, None, "count", CPU).tolist() == [3.0, 2.0, 0.0, 4.0]
    assert [vector.tolist() for vector in basis] == [[3.0, 2.0, 1.0, 1.0], [1.0, 1.0, -5.0, 4.0]]


def modulators(taus, unified, source="accumulated", kept=None):
    taus = [torch.tensor(tau) for tau in taus]
    kept = kept or [torch.zeros(k, dtype=torch.float64) for k in range(len(taus))]
    sizes = [float(tau.abs().sum()) for tau in taus]
    return Modulators(taus, kept, sizes, torch.tensor(unified), source)


def test_mask_and_scale_by_hand():
    # tau_k = (1, -2, 3), tau_uni = (2, 2, 1): they agree at 0 and 2; s = (1 + 2 + 3) / (2 + 1) = 2.
    one = modulators([[1.0, -2.0, 3.0]], [2.0, 2.0, 1.0])
    assert [piece.tolist() for _, piece in one.masks(0)] == [[True, False, True]]
    assert one.scales().tolist() == [2.0]
    assert one.deployed(0, 2.0).tolist() == [4.0, 0.0, 2.0]


def test_masks_come_from_the_accumulated_or_the_refined_vector():
    # tau_2 = tau_hat_2 + 2 tau_hat_1 = (2, -1): it disagrees with tau_uni where tau_hat_2 = (0, -1) does not act.
    basis, kept = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, -1.0])], [torch.zeros(0), torch.tensor([2.0])]
    unified = torch.tensor([1.0, -1.0])
    whole = Modulators(basis, kept, [1.0, 3.0], unified, "accumulated")
    refined = Modulators(basis, kept, [1.0, 1.0], unified, "refined")
    assert whole.scales().tolist() == [1.0, 1.5]
    assert refined.scales().tolist() == [1.0, 1.0]
    assert whole.deployed(1, 1.5).tolist() == [1.5, -1.5]
    assert refined.deployed(1, 1.0).tolist() == [0.0, -1.0]


def test_without_masks_every_task_gets_the_unified_vector():
    plain = modulators([[1.0, 1.0], [-1.0, 1.0]], [1.0, -2.0], None)
    assert plain.scales().tolist() == [1.0, 1.0]
    assert plain.deployed(1, 1.0).tolist() == [1.0, -2.0]


def test_masks_survive_products_that_underflow_and_no_agreement_deploys_nothing():
    assert [piece.tolist() for _, piece in modulators([[1e-30]], [1e-30]).masks(0)] == [[True]]
    one = modulators([[1.0]], [-1.0])
    assert one.scales().tolist() == [0.0]
    assert one.deployed(0, 0.0).tolist() == [0.0]
