"""Speech Commands: spectrograms against a plain computation, the official lists, and a cell that trains on them."""

import wave

import numpy as np
import pytest
import torch

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.speech_commands import (
    FOLDER,
    RATE,
    WORDS,
    SpeechCommands,
    TimeShift,
    mel_bands,
    read_wave,
    spectrogram,
)


class Tiny(SpeechCommands):
    default_tasks, train_samples, test_samples = 5, 70, 35


def tone(frequency, seconds=1.0, seed=0):
    noise = np.random.default_rng(seed).normal(0, 0.01, int(RATE * seconds))
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(RATE * seconds)) / RATE) + noise


def record(path, samples, rate=RATE, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((32767 * np.clip(samples, -1, 1)).astype("<i2").tobytes())


@pytest.fixture
def archive(tmp_path):
    """Each word is a tone: two training recordings, one for tests and one for validation."""
    folder, lists = tmp_path / FOLDER, {"testing": [], "validation": []}
    for number, word in enumerate(WORDS):
        for speaker, part in enumerate(("", "", "testing", "validation")):
            record(folder / word / f"{speaker}_nohash_0.wav", tone(200 + 100 * number, seed=speaker))
            if part:
                lists[part].append(f"{word}/{speaker}_nohash_0.wav")
    record(folder / "_background_noise_" / "white.wav", tone(50))
    for part, names in lists.items():
        (folder / f"{part}_list.txt").write_text("\n".join(names) + "\n")
    return folder


def test_reads_the_official_split(archive):
    corpus, _ = open_dataset(Tiny(), archive.parent)
    assert corpus.class_names == WORDS
    assert len(WORDS) == 35
    assert corpus.train.inputs.shape == (70, 1, 64, 100)
    assert corpus.train.inputs.dtype == np.float16
    assert np.bincount(corpus.train.labels).tolist() == [2] * 35
    assert np.bincount(corpus.test.labels).tolist() == [1] * 35
    values = corpus.test.inputs.astype(np.float64)
    assert np.abs(values.mean(axis=(1, 2, 3))).max() < 1e-3
    assert np.abs(values.std(axis=(1, 2, 3)) - 1).max() < 1e-3


def test_spectrogram_of_a_tone_against_a_plain_sum():
    """One frame and one band by loops, before the scaling; a tone of 1 kHz is loudest in the band around it."""
    samples = tone(1000)
    power = np.zeros(201)
    for k in range(201):
        window = [0.5 - 0.5 * np.cos(2 * np.pi * n / 400) for n in range(400)]
        piece = [samples[5000 - 200 + n] * window[n] for n in range(400)]
        power[k] = abs(sum(value * np.exp(-2j * np.pi * k * n / 400) for n, value in enumerate(piece))) ** 2
    raw = np.log(mel_bands() @ power + 1e-6)
    found = spectrogram(np.roll(samples, -40))[:, 31]  # the middle of step 31, sample 4960, is what was sample 5000
    assert np.corrcoef(found, raw)[0, 1] > 1 - 1e-12  # equal up to the scaling of the whole spectrogram
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 66) / 2595) - 1)
    assert np.abs(edges[1:-1] - 1000).argmin() == found.argmax()


def test_bands_overlap_by_one_half():
    bands = mel_bands()
    inner = bands[:, 10:190].sum(axis=0)
    assert np.allclose(inner, 1.0)  # between the middles of the first and the last band
    assert bands.min() == 0.0


def test_a_shift_moves_steps_and_fills_with_the_quietest_value():
    values = torch.arange(100.0).repeat(1, 1, 64, 1)
    moved = TimeShift().apply(values, {"shift": torch.tensor([3])})
    assert moved[0, 0, 0, :5].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    moved = TimeShift().apply(values, {"shift": torch.tensor([-2])})
    assert moved[0, 0, 5, -4:].tolist() == [98.0, 99.0, 0.0, 0.0]
    assert TimeShift().apply(values, {}) is not None
    drawn = TimeShift().draw(1000, np.random.default_rng(0))["shift"]
    assert (drawn.min(), drawn.max()) == (-10, 10)


def test_short_long_and_silent_recordings(tmp_path):
    record(tmp_path / "short.wav", tone(300, 0.4))
    assert read_wave(tmp_path / "short.wav")[6400:].tolist() == [0.0] * 9600
    record(tmp_path / "long.wav", tone(300, 1.5))
    assert len(read_wave(tmp_path / "long.wav")) == RATE
    assert np.abs(spectrogram(np.zeros(RATE))).max() == 0.0


@pytest.mark.parametrize("damage", ["rate", "channels", "truncated", "list"])
def test_damage_is_named(archive, damage):
    path = archive / "bed" / "0_nohash_0.wav"
    if damage == "list":
        (archive / "testing_list.txt").unlink()
        reason = "cannot read .*testing_list.txt: No such file"
    elif damage == "truncated":
        path.write_bytes(b"RIFF")
        reason = r"broken recording .*bed/0_nohash_0\.wav"
    else:
        record(path, tone(300), rate=8000 if damage == "rate" else RATE, channels=2 if damage == "channels" else 1)
        reason = r"recording .*bed/0_nohash_0\.wav has . channels of 16 bits at .* Hz, not 1, 16, 16000"
    with pytest.raises(DataError, match=reason):
        Tiny().load(archive.parent)


def test_a_cell_trains_on_spectrograms(archive, tmp_path):
    """A small network of timm on tones: right far more often than by chance (1/7 within a task)."""
    from fcilbench.federation.experiment import Experiment
    from fcilbench.federation.run import run_experiment
    from fcilbench.plugins.aggregators.ncm import Ncm
    from fcilbench.plugins.backbones.timm import Timm
    from fcilbench.plugins.stressors.none import NoStress
    from fcilbench.spec.protocol import Partition, Protocol

    backbone = Timm(Timm.Params(model="test_resnet", weights="none", args={"in_chans": 1}, input_size=[64, 100]))
    outcome = run_experiment(
        Experiment(
            aggregator=Ncm(),
            stressor=NoStress(),
            data_root=archive.parent,
            protocol=Protocol(clients=2, rounds=1, local_epochs=1),
            partition=Partition(kind="iid"),
            dataset=Tiny(),
            backbone=backbone,
            tasks=5,
        ),
        tmp_path / "run",
    )
    assert outcome.metrics["faa/oracle"].value > 0.4
