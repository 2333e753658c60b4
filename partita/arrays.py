"""Numpy arrays as annotations name them, by what they hold. Their shapes are said where they matter."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Reals: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
