"""Speech Commands: spoken words of one second, as spectrograms. It shows that inputs need not be square images."""

from __future__ import annotations

import functools
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fcilbench.api import Archive, Corpus, DataError, Dataset, Samples, Transform

FOLDER = "speech_commands_v0.02"
RATE = 16_000
"""Samples a second; a recording is cut or padded with silence to one second."""
HOP, WINDOW, BANDS = 160, 400, 64
"""Steps of 10 ms, windows of 25 ms, mel bands between 0 and 8 kHz."""
FRAMES = RATE // HOP
WORDS = (
    "backward",
    "bed",
    "bird",
    "cat",
    "dog",
    "down",
    "eight",
    "five",
    "follow",
    "forward",
    "four",
    "go",
    "happy",
    "house",
    "learn",
    "left",
    "marvin",
    "nine",
    "no",
    "off",
    "on",
    "one",
    "right",
    "seven",
    "sheila",
    "six",
    "stop",
    "three",
    "tree",
    "two",
    "up",
    "visual",
    "wow",
    "yes",
    "zero",
)


class TimeShift(Transform):
    """Moves a spectrogram by up to a tenth of a second in training; what is left free is its quietest value."""

    def draw(self, count: int, random: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
        """Draws how many steps to move each, from -10 to 10 (Warden 2018: up to 100 ms)."""
        return {"shift": random.integers(-FRAMES // 10, FRAMES // 10 + 1, count)}

    def apply(self, arrays: torch.Tensor, draws: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the spectrograms `[B, 1, bands, frames]`, moved if there are draws."""
        scaled = super().apply(arrays, draws)
        if not draws:
            return scaled
        steps = torch.arange(FRAMES, device=arrays.device) - draws["shift"][:, None]
        inside = (steps >= 0) & (steps < FRAMES)
        index = steps.clamp(0, FRAMES - 1)[:, None, None, :].expand_as(scaled)
        quiet = scaled.amin(dim=(1, 2, 3), keepdim=True)
        return torch.where(inside[:, None, None, :], scaled.gather(3, index), quiet)


class SpeechCommands(Dataset):
    """105,829 recordings of 35 words by 2,618 speakers (version 0.02), as log-mel spectrograms of 64 bands x 100 steps.

    Reads `speech_commands_v0.02/<word>/*.wav` with `testing_list.txt` and `validation_list.txt` under the data root.
    The official split is by speaker: 84,843 training and 11,005 test recordings; the 9,981 validation recordings are
    left out. Background noise is no class. Each spectrogram has mean 0 and deviation 1 (float16). A backbone that reads
    it takes arrays of shape [1, 64, 100]: `{use: timm, model: resnet18, args: {in_chans: 1}, input_size: [64, 100]}`.
    No content digest is declared, since these files were never seen here; the archive's checksum is.
    """

    version = "1"
    modality = "array"
    shape = (1, BANDS, FRAMES)
    transform = TimeShift()
    classes = 35
    default_tasks = 5
    train_samples = 84_843
    test_samples = 11_005
    cached = True
    layouts = (tuple(f"{FOLDER}/{part}" for part in ("testing_list.txt", "validation_list.txt", *WORDS)),)
    archives = (
        Archive(
            "speech_commands_v0.02.tar.gz",
            "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
            published="TensorFlow Datasets (speech_commands/checksums.tsv) and torchaudio",
            url="https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
            size=2_428_923_189,
            folder=FOLDER,
        ),
    )
    licence = "CC BY 4.0"
    homepage = "https://arxiv.org/abs/1804.03209"
    citation = "Warden (2018), Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition, arXiv:1804.03209"

    def load(self, root: Path) -> Corpus:
        """Reads all recordings, float16 `[n, 1, bands, frames]`.

        Raises:
            DataError: If the archive is not there, or a recording is not 16-bit mono at 16 kHz.
        """
        folder = root / FOLDER
        try:
            test, left_out = (
                set((folder / f"{name}_list.txt").read_text(encoding="utf-8").split())
                for name in ("testing", "validation")
            )
        except OSError as error:
            raise DataError(
                f"speech-commands: cannot read {error.filename}: {error.strerror}",
                hint="run `fcilbench data fetch speech-commands`; another data root is set by --data or FCILBENCH_DATA",
            ) from error
        train_parts: list[tuple[Path, int]] = []
        test_parts: list[tuple[Path, int]] = []
        for label, word in enumerate(WORDS):
            for path in sorted((folder / word).glob("*.wav")):
                name = f"{word}/{path.name}"
                if name not in left_out:
                    (test_parts if name in test else train_parts).append((path, label))
        return Corpus(_samples(train_parts), _samples(test_parts), WORDS)


def _samples(parts: list[tuple[Path, int]]) -> Samples:
    inputs = np.empty((len(parts), 1, BANDS, FRAMES), dtype=np.float16)
    for row, (path, _) in zip(inputs, parts, strict=True):
        row[0] = spectrogram(read_wave(path))
    return Samples(inputs, np.array([label for _, label in parts], dtype=np.int64))


def read_wave(path: Path) -> npt.NDArray[np.float64]:
    """Returns one second of a recording, float64 `[16000]` in -1 .. 1.

    Raises:
        DataError: If it cannot be read, or is not 16-bit mono at 16 kHz.
    """
    try:
        with wave.open(str(path)) as file:
            kind = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            samples = np.frombuffer(file.readframes(RATE), dtype="<i2") / 32768
    except (OSError, EOFError, wave.Error, ValueError) as error:
        raise DataError(f"broken recording {path}: {error or type(error).__name__}") from error
    if kind != (1, 2, RATE):
        raise DataError(
            f"recording {path} has {kind[0]} channels of {8 * kind[1]} bits at {kind[2]} Hz, not 1, 16, {RATE}"
        )
    return np.pad(samples, (0, RATE - len(samples)))


def spectrogram(samples: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the log-mel spectrogram `[bands, frames]` of one second, with mean 0 and deviation 1.

    Power spectra of Hann windows around every 10 ms, the edges reflected; triangular bands on the mel scale
    2595 log10(1 + f / 700); log of the power plus 1e-6.
    """
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    starts = HOP * np.arange(FRAMES)[:, None] + np.arange(WINDOW)
    power = np.abs(np.fft.rfft(padded[starts] * np.hanning(WINDOW + 1)[:-1])) ** 2
    found: npt.NDArray[np.float64] = np.log(mel_bands() @ power.T + 1e-6)
    found -= found.mean()
    return found / max(float(found.std()), 1e-12)


@functools.cache
def mel_bands() -> npt.NDArray[np.float64]:
    """Returns the weights of each frequency in each band, `[bands, 201]`: triangles that overlap by one half."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, centre, high = (edges[start : start + BANDS, None] for start in range(3))
    return np.clip(np.minimum((frequencies - low) / (centre - low), (high - frequencies) / (high - centre)), 0, None)
