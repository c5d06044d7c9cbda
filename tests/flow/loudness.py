"""How loud speech is, for the tests that compare voices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def level_db(samples: npt.NDArray[np.float32]) -> float:
    """Of what is spoken, in dB of full scale."""
    power = (samples[: len(samples) // 480 * 480].reshape(-1, 480) ** 2).mean(1)
    return float(10 * np.log10(power[power > 1e-5].mean()))
