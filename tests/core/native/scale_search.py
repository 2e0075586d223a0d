"""An exhaustive search for the scales of blocks, by numpy: the yardstick of the quantiser.

It tries thirty-two scales of a grid on every block, refines the better one of each two twice, and measures all as they
are stored, with the plain scales and the neighbours of the best. The quantiser of the first release did this.
"""

import ml_dtypes
import numpy as np

LANES = 16


def codes(x, inverse, bits):
    low = -(1 << (bits - 1))
    scaled = x.astype(np.float32)[:, None, :] * inverse.astype(np.float32)[:, :, None]
    return np.clip(np.rint(scaled), low, -low - 1).astype(np.float64)


def sums(x, inverse, bits):
    q = codes(x, inverse, bits)
    return (x[:, None, :] * q).sum(-1), (q * q).sum(-1)


def stored(scale, scale_type):
    dtype = {"fp16": np.float16, "fp32": np.float32}[scale_type]
    limit = float(np.finfo(dtype).max)
    return np.clip(scale, -limit, limit).astype(dtype).astype(np.float64)


def neighbour(scale, scale_type, towards):
    dtype = {"fp16": np.float16, "fp32": np.float32}[scale_type]
    with np.errstate(over="ignore"):
        magnitude = np.nextafter(np.abs(scale).astype(dtype), dtype(towards))
    return np.copysign(np.where(np.isfinite(magnitude), magnitude, np.abs(scale)), scale).astype(np.float64)


def errors(x, scale, bits):
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return ((x[:, None, :] - scale[:, :, None] * codes(x, inverse, bits)) ** 2).sum(-1)


def least_errors(x, bits, scale_type):
    x = x.astype(np.float64)
    rows = np.arange(len(x))
    extreme = x[rows, np.abs(x).argmax(1)][:, None]
    low = -(1 << (bits - 1))
    steps = -low * 0.55 * (1.2 / 0.55) ** (np.arange(LANES) / (LANES - 1))
    grid = np.stack([-steps, steps], 1).ravel() / extreme
    best, gain = np.zeros((2, len(x), LANES))
    for part in (grid[:, :LANES], grid[:, LANES:]):
        xq, qq = sums(x, part, bits)
        found = xq * xq / np.maximum(qq, 1)
        best = np.where(found > gain, np.divide(qq, xq, out=part.copy(), where=xq != 0), best)
        gain = np.maximum(found, gain)
    for _ in range(2):
        xq, qq = sums(x, best, bits)
        best = np.divide(qq, xq, out=best.copy(), where=xq != 0)
    scale = stored(np.divide(1, best, out=np.zeros_like(best), where=best != 0), scale_type)
    error = errors(x, scale, bits)
    one = scale[rows, error.argmin(1)][:, None]
    plain = stored(np.concatenate([extreme / low, extreme / (-low - 1)], 1), scale_type)
    near = [neighbour(one, scale_type, np.inf), neighbour(one, scale_type, 0), neighbour(plain, scale_type, np.inf)]
    more = errors(x, np.concatenate([plain, *near], 1), bits)
    return np.minimum(error.min(1), more.min(1))


def _spikes(rng, shape):
    x = rng.standard_normal(shape)
    x[:, 3] *= 20
    return x


# Kinds of blocks: the distribution of their elements.
KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape) * 0.02,
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "student": lambda rng, shape: rng.standard_t(2, shape),
    "laplace": lambda rng, shape: rng.laplace(size=shape),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    "spikes": _spikes,
    "near a constant": lambda rng, shape: 1 + rng.standard_normal(shape) * 0.05,
    "constant": lambda rng, shape: np.broadcast_to(rng.standard_normal((shape[0], 1)), shape),
    "whole numbers": lambda rng, shape: rng.integers(-30, 31, shape),
    "noisy levels": lambda rng, shape: rng.integers(-8, 8, shape) * 0.037 + rng.standard_normal(shape) * 0.003,
    "of bfloat16": lambda rng, shape: rng.standard_normal(shape).astype(ml_dtypes.bfloat16),
    "at the limit of float16": lambda rng, shape: rng.standard_normal(shape) * 1.5e5,
    "subnormal float16": lambda rng, shape: rng.standard_normal(shape) * 2e-4,
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-30,
}


def blocks(kind, count, size):
    x = KINDS[kind](np.random.default_rng(len(kind) * 1000 + size), (count, size))
    floats = np.array(x, np.float32)
    floats[~floats.any(1), 0] = 1
    return floats
