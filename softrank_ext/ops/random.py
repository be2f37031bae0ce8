"""Random numbers from counters: Philox-4x32-10 and the normal quantile, with the same bits on every device.

`noise` has the checked functions. A number is a function of (seed, sample, step, stream, index).
"""

import torch
from torch import Tensor

from softrank_ext.ops.library import define

# Philox-4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011).
_PHILOX_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW_32 = 0xFFFFFFFF

# Wichura's AS241 (PPND16), numerator and denominator of the normal quantile, highest power first.
_QUANTILE_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_QUANTILE_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_QUANTILE_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip
_LOG_2 = 0.6931471805599453


def philox_words(counter: list[Tensor], seed: int) -> list[Tensor]:
    """Four 32-bit words per counter by Philox-4x32-10; words are int64 tensors of one shape that hold 0 to 2^32 - 1."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _LOW_32, (seed >> 32) & _LOW_32
    for _ in range(10):
        # A product of two 32-bit words can pass 2^63; its low 64 bits are right all the same in wrapping arithmetic.
        p0, p1 = c0 * _PHILOX_MULTIPLIER[0], c2 * _PHILOX_MULTIPLIER[1]
        high0, low0 = (p0 >> 32) & _LOW_32, p0 & _LOW_32
        high1, low1 = (p1 >> 32) & _LOW_32, p1 & _LOW_32
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _LOW_32, (k1 + _PHILOX_WEYL[1]) & _LOW_32
    return [c0, c1, c2, c3]


def _random_bits(samples: Tensor, seed: int, step: int, stream: int, count: int) -> tuple[Tensor, Tensor]:
    """High and low 32-bit words (B, count) of the 64 random bits behind each number."""
    pair = torch.arange((count + 1) // 2, device=samples.device)
    zero = torch.zeros(samples.shape[0], len(pair), dtype=torch.int64, device=samples.device)
    low_sample, high_sample = (samples & _LOW_32)[:, None], ((samples >> 32) & _LOW_32)[:, None]
    counter = [zero + pair, zero + (step | (stream << 24)), zero + low_sample, zero + high_sample]
    w0, w1, w2, w3 = philox_words(counter, seed)  # (B, pairs)
    high = torch.stack((w0, w2), -1).flatten(1)[:, :count]
    low = torch.stack((w1, w3), -1).flatten(1)[:, :count]
    return high, low


def random_uniform_reference(
    samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Uniform numbers in [0, 1) of shape (B, count), row b keyed by (seed, samples[b], step, stream).

    One number takes 64 random bits: its leading 53 in float64, its leading 24 in float32.
    """
    high, low = _random_bits(samples, seed, step, stream, count)
    if dtype == torch.float64:
        return ((high << 21) | (low >> 11)).to(dtype) * 2.0**-53
    return (high >> 8).to(dtype) * 2.0**-24


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _log(x: Tensor) -> Tensor:
    """Natural logarithm by multiplications and additions only, so that every device rounds alike."""
    mantissa, exponent = torch.frexp(x)  # mantissa in [0.5, 1)
    is_low = mantissa < 0.7071067811865476
    mantissa = torch.where(is_low, mantissa * 2, mantissa)
    exponent = exponent.to(x.dtype) - is_low.to(x.dtype)
    s = (mantissa - 1) / (mantissa + 1)
    series = _horner(tuple(2.0 / k for k in range(21, 0, -2)), s * s)
    return exponent * _LOG_2 + s * series


def _sqrt(x: Tensor) -> Tensor:
    """Square root of x in [0.5, 40] by Heron's rule: torch's own is not correctly rounded on every processor."""
    root = 1.0 + 0.15 * x
    for _ in range(5):
        root = 0.5 * (root + x / root)
    return root


def normal_quantile(p: Tensor) -> Tensor:
    """Inverse of the normal distribution function for p in (0, 1), float64 (AS241)."""
    q = p - 0.5
    centre_argument = 0.180625 - q * q
    tail_argument = _sqrt(-_log(torch.where(q < 0, p, 1 - p)))
    middle, tail = tail_argument - 1.6, tail_argument - 5.0
    in_tail = torch.where(
        tail_argument <= 5.0,
        _horner(_QUANTILE_MIDDLE[0], middle) / _horner(_QUANTILE_MIDDLE[1], middle),
        _horner(_QUANTILE_TAIL[0], tail) / _horner(_QUANTILE_TAIL[1], tail),
    )
    in_centre = q * (_horner(_QUANTILE_CENTRE[0], centre_argument) / _horner(_QUANTILE_CENTRE[1], centre_argument))
    return torch.where(q.abs() <= 0.425, in_centre, torch.where(q < 0, -in_tail, in_tail))


def random_normal_reference(
    samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Standard normal numbers (B, count): the quantile of the middle of a 52-bit cell of (0, 1), rounded to dtype."""
    high, low = _random_bits(samples, seed, step, stream, count)
    middle_of_cell = (((high << 20) | (low >> 12)).to(torch.float64) + 0.5) * 2.0**-52
    return normal_quantile(middle_of_cell).to(dtype)


def _fake_random(samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    return samples.new_empty((samples.shape[0], count), dtype=dtype)


_ARGUMENTS = ("Tensor samples", "int seed", "int step", "int stream", "int count", "ScalarType dtype")
define("random_uniform", _ARGUMENTS, "Tensor", random_uniform_reference, _fake_random)
define("random_normal", _ARGUMENTS, "Tensor", random_normal_reference, _fake_random)
