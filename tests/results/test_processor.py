import pytest

from fcilbench.results.processor import has_bf16, processor, torch_capability

EPYC = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC 9004
flags		: fpu sse2 ssse3 fma sse4_1 avx f16c avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16

processor	: 1
vendor_id	: Other
"""
GRAVITON = """\
processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd fphp asimdhp sve bf16
CPU implementer	: 0x41
CPU architecture: 8
CPU part	: 0xd40
"""
HASWELL = EPYC.partition(" avx512f")[0]


@pytest.fixture
def described(tmp_path):
    def read(text):
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        return processor(path)

    return read


def test_the_first_processor_is_described(described):
    sets = ["sse2", "sse4_1", "avx", "f16c", "fma", "avx2"]
    wide = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"]
    names = {"vendor": "AuthenticAMD", "family": "25", "model": "17", "name": "AMD EPYC 9004"}
    assert described(EPYC) == {**names, "instruction_sets": [*sets, *wide]}
    arm = {"vendor": "0x41", "family": "8", "model": "0xd40", "name": ""}
    assert described(GRAVITON) == {**arm, "instruction_sets": ["asimd", "fphp", "asimdhp", "bf16", "sve"]}


@pytest.mark.parametrize(
    ("text", "capability", "bf16"),
    [(EPYC, "AVX512", True), (HASWELL, "AVX2", False), (GRAVITON, "DEFAULT", True), ("", "DEFAULT", True)],
)
def test_what_torch_will_do_with_it(described, monkeypatch, text, capability, bf16):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    found = described(text)
    assert (torch_capability(found), has_bf16(found)) == (capability, bf16)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert torch_capability(found) == "AVX2"


def test_a_machine_without_cpuinfo_has_no_processor(tmp_path):
    assert processor(tmp_path / "none")["instruction_sets"] == []


def test_torch_agrees_about_this_machine():
    torch = pytest.importorskip("torch")
    assert torch_capability(processor()) == torch.backends.cpu.get_cpu_capability()
