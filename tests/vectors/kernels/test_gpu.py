"""Kernels beside the torch path on a CUDA device."""

import warnings

import pytest
import torch

from fcilbench.vectors.basis import products, project_out, rebuild, refine, subtract
from fcilbench.vectors.storage import store
from fcilbench.vectors.surgery import coefficients, gram, merge, surgery_matrix
from fcilbench.vectors.topk import cut
from fcilbench.vectors.trim import Trimmed
from fcilbench.vectors.unify import RULES, Modulators, mask, unify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
UNIT, DOUBLE = 2.0**-24, 2.0**-53


def updates(count, size, wider=0):
    """Heavy-tailed rows, `size` columns of a matrix that has `wider` more."""
    generator = torch.Generator("cuda").manual_seed(count)
    rows = torch.randn(count, size + wider, generator=generator, device="cuda") * 1e-5
    rows /= torch.rand(count, size + wider, generator=generator, device="cuda") + 0.05
    return rows[:, :size]


@pytest.fixture(autouse=True)
def kernels_on():
    pytest.importorskip("triton", reason="needs Triton")
    from fcilbench.vectors import kernels

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    assert kernels.STATE.off == {}


def test_the_kernels_are_chosen():
    from fcilbench.vectors import kernels

    rows = updates(3, 1000)
    assert kernels.usable(rows)
    assert not kernels.usable(rows.double())
    assert not kernels.usable(rows.T)
    assert not kernels.usable(rows.cpu())
    assert not kernels.usable(rows[:1].expand(kernels.LIMIT + 1, 1000))
    assert not Trimmed(rows, 4.5, segments=(400, 600)).fused
    assert not Trimmed(rows, 4.5, fused=False).fused


@pytest.mark.parametrize(
    ("count", "size", "wider"),
    [(1, 1_000_003, 0), (2, 100, 3), (3, 1_000_000, 77), (10, 2_000_001, 4), (17, 300_001, 1), (64, 100_003, 9)],
)
@pytest.mark.parametrize("threshold", [3.0, None])
def test_both_paths_agree(count, size, wider, threshold):
    rows = updates(count, size, wider)
    ours, plain = Trimmed(rows, threshold), Trimmed(rows, threshold, fused=False)
    for one, two in zip(ours.bounds, plain.bounds, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-9)
    plain._bounds = ours._bounds  # so that no entry at the very edge falls on different sides
    products, dense = gram(ours), plain.dense().double()
    sizes = dense.abs() @ dense.abs().T
    assert ((products - gram(plain)).abs() <= 2 * size * DOUBLE * sizes).all()
    assert int(ours.zeroed) == int(plain.zeroed)
    weights = coefficients(surgery_matrix(products))
    (merged, flips), (expected, turned) = merge(weights, ours), merge(weights, plain)
    slack = 2 * UNIT * (2 * count + 1) * (weights.abs() @ dense.abs())
    assert ((merged - expected).abs() <= slack).all()
    assert int(ours.zeroed) == int(plain.zeroed)
    unclear = (expected.abs() <= slack) | (dense.sum(0).abs() <= 2 * UNIT * count * dense.abs().sum(0))
    assert abs(flips - turned) * size <= int(unclear.sum()) + 0.5


def test_two_rounds_agree_in_every_bit():
    rows = updates(10, 1_000_003)
    results = []
    for _ in range(2):
        vectors = Trimmed(rows, 4.5)
        products = gram(vectors)
        results.append((products, *merge(coefficients(surgery_matrix(products)), vectors)))
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in zip(*results, strict=True))


def test_offsets_pass_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free memory")
    size = 2**30 + 5
    rows = torch.ones(2, size, device="cuda")
    rows[1, -1] = 3.0
    vectors = Trimmed(rows, None)
    assert gram(vectors).tolist() == [[size, size + 2], [size + 2, size + 8]]
    merged, flips = merge(torch.tensor([1.0, -2.0]), vectors)
    assert merged[[0, -1]].tolist() == [-1.0, -5.0]
    assert flips == 1.0


@pytest.fixture
def plain(monkeypatch):
    """Calls a function on the torch path."""

    def call(function, *given):
        with monkeypatch.context() as patched:
            patched.setenv("FCILBENCH_KERNELS", "off")
            return function(*given)

    return call


def test_the_kernels_over_tasks_are_chosen():
    from fcilbench.vectors.kernels import tasks

    rows = list(updates(3, 1000))
    assert tasks.usable(rows)
    assert tasks.usable([store(row) for row in rows])
    assert tasks.usable([row[1:-1] for row in rows])
    assert not tasks.usable([row.double() for row in rows])
    assert not tasks.usable([row[::2] for row in rows])
    assert not tasks.usable([store(row, "fp16") for row in rows])
    assert not tasks.usable([rows[0], rows[1].cpu()])


SIZES = [(1, 1_000_003), (2, 100), (9, 2_000_001), (10, 500_000), (17, 300_001), (50, 100_003)]


@pytest.mark.parametrize(("count", "size"), SIZES)
def test_both_paths_of_the_projection_agree(count, size, plain):
    vector, *basis = updates(count + 1, size, 1)[:, 1:]
    step = torch.linspace(-1, 1, count, dtype=torch.float64, device="cuda")
    rows = torch.stack(basis).double()
    (inner, norms), (their_inner, their_norms) = products(vector, basis), plain(products, vector, basis)
    assert ((inner - their_inner).abs() <= 2 * size * DOUBLE * (rows.abs() @ vector.double().abs())).all()
    assert torch.allclose(norms, their_norms, rtol=2 * size * DOUBLE, atol=0)
    (refined, again), (their_refined, _) = refine(vector, step, basis), plain(refine, vector, step, basis)
    wide = 2 * (count + 1) * DOUBLE * (vector.double().abs() + step.abs() @ rows.abs())
    assert ((refined - their_refined).abs() <= 2 * (UNIT * their_refined.abs() + wide)).all()
    assert torch.equal(refined, subtract(vector, step, basis))
    wide = refined.double()
    assert ((again - rows @ wide).abs() <= 2 * size * DOUBLE * (rows.abs() @ wide.abs())).all()


def task_vectors(count, size):
    """Basis and coefficients of accumulated, nearly parallel task vectors, and these."""
    taus, basis, kept = updates(count, size).cumsum(0), [], []
    for tau in taus:
        refined, coefficients = project_out(tau, basis)
        basis.append(refined)
        kept.append(coefficients)
    return taus, basis, kept


@pytest.mark.parametrize(("count", "size"), SIZES)
def test_both_paths_of_the_module_agree(count, size, plain):
    taus, basis, kept = task_vectors(count, size)
    unit = torch.stack(basis).double()
    unit /= unit.norm(dim=1, keepdim=True)
    assert (unit @ unit.T).fill_diagonal_(0.0).abs().max() <= 1e-5
    assert torch.allclose(rebuild(count - 1, basis, kept), taus[-1], rtol=1e-4, atol=1e-6 * float(taus.abs().max()))
    cuts = [cut(vector, 0.05) for vector in basis]
    for rule in RULES:
        for chosen in (cuts, None):
            ours, theirs = (call(unify, basis, chosen, rule, taus.device) for call in (lambda f, *g: f(*g), plain))
            # Sums in float64 may round to different neighbours in float32 where they all but tie.
            assert torch.allclose(ours, theirs, rtol=2 * UNIT, atol=0) if rule == "off" else torch.equal(ours, theirs)
    unified = unify(basis, cuts, "count", taus.device)
    for source in ("accumulated", "refined"):
        modulators = Modulators(basis, kept, unified, source)
        (own_size, own_agreed), (size_, agreed) = modulators.norms(), plain(modulators.norms)
        assert torch.allclose(own_size, size_, rtol=2 * size * DOUBLE, atol=0)
        assert torch.allclose(own_agreed, agreed, rtol=2 * size * DOUBLE, atol=0)


def test_the_norms_see_the_masks_that_are_deployed():
    _, basis, kept = task_vectors(10, 1_000_003)
    unified = unify(basis, None, "count", basis[0].device).sign()  # ones, so that a norm counts the mask's entries
    modulators = Modulators(basis, kept, unified)
    counted = [sum(int((piece & (unified[span] != 0)).sum()) for span, piece in modulators.masks(k)) for k in range(10)]
    assert modulators.norms()[1].tolist() == counted
    assert mask(rebuild(9, basis, kept), unified).sum() == counted[9]


def test_two_ends_of_a_task_agree_in_every_bit():
    results = []
    for _ in range(2):
        _, basis, kept = task_vectors(4, 1_000_003)
        unified = unify(basis, [cut(vector, 0.05) for vector in basis], "count", basis[0].device)
        results.append((basis[-1], kept[-1], unified, Modulators(basis, kept, unified).scales()))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_offsets_over_tasks_pass_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of free memory")
    size = 2**31 + 5
    one, two = torch.ones(size, device="cuda"), torch.ones(size, device="cuda")
    two[-1] = 3.0
    inner, norms = products(one, [two])
    assert (inner.tolist(), norms.tolist()) == ([size + 2], [size + 8])
    step = torch.ones(1, dtype=torch.float64, device="cuda")
    refined, again = refine(one, step, [two])
    assert (refined[[0, -1]].tolist(), again.tolist()) == ([0.0, -2.0], [-6.0])
    assert subtract(one, step, [two])[[0, -1]].tolist() == [0.0, -2.0]
    assert unify([two], None, "count", one.device)[[0, -1]].tolist() == [1.0, 3.0]
    kept = [torch.zeros(0, dtype=torch.float64, device="cuda")]
    assert [norm.tolist() for norm in Modulators([two], kept, one).norms()] == [[size + 2], [size]]
