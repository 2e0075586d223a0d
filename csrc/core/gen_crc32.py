"""Writes the constants of the CRC-32 kernels: `python csrc/core/gen_crc32.py` rewrites crc32_constants.h beside it.

A polynomial over GF(2) of degree below 32 is held *reflected*: bit 31 of the word is the coefficient of x^0, bit 0 that
of x^31. Everything below follows from one operation, multiplication by x modulo P.
"""

from pathlib import Path

P = 0xEDB88320  # x^32 + x^26 + x^23 + ... + x + 1, reflected, the leading x^32 left out
ONE = 0x80000000  # the polynomial 1
FOLD_BLOCKS = (1, 2, 4, 8, 16, 32)  # distances of folding, 128 bits each
ARM_STRIDES = (128, 1024)  # bytes of each of the three streams of the kernel for the arm64 CRC instructions


def times_x(a: int) -> int:
    """Return a * x mod P."""
    return a >> 1 ^ (P if a & 1 else 0)


def multiply(a: int, b: int) -> int:
    """Return a * b mod P."""
    product = 0
    for i in range(32):
        if b >> (31 - i) & 1:  # the coefficient of x^i
            product ^= a
        a = times_x(a)
    return product


def x_to_the(n: int) -> int:
    """Return x^n mod P, by squaring."""
    result, square = ONE, ONE >> 1
    while n:
        if n & 1:
            result = multiply(result, square)
        square = multiply(square, square)
        n >>= 1
    return result


def slice_bases() -> list[list[int]]:
    """Return, for each of the 16 tables of crc32.c, its entries 128, 64, ... 1, of which all others are sums.

    Bit i of a byte that k more bytes follow is the coefficient of x^(7 - i + 8k), and the CRC multiplies by x^32.
    """
    return [[x_to_the(32 + 8 * k + i) for i in range(8)] for k in range(16)]


def powers() -> list[list[int]]:
    """Return 8 tables: entry d of table k is x^(d * 16^k) mod P."""
    return [[x_to_the(digit * 16**k) for digit in range(16)] for k in range(8)]


def quotient(dividend: int) -> int:
    """Return floor(x^dividend / P), not reflected."""
    divisor = 1 << 32 | int(f"{P:032b}"[::-1], 2)
    rest, result = 1 << dividend, 0
    while rest.bit_length() >= divisor.bit_length():
        shift = rest.bit_length() - divisor.bit_length()
        rest ^= divisor << shift
        result |= 1 << shift
    return result


def words(values: list[int]) -> str:
    """Return the values as C hexadecimals."""
    return ", ".join(f"0x{value:08x}" for value in values)


def define_list(name: str, items: list[str]) -> str:
    """Return the definition of a macro of these items, one on each line."""
    return f"#define {name} \\\n    " + ", \\\n    ".join(items)


def header() -> str:
    """Return the text of crc32_constants.h."""
    halves = [half for row in powers() for half in (f"{{{words(row[:8])}", f"{words(row[8:])}}}")]
    lines = [
        "/* Written by `python csrc/core/gen_crc32.py`; do not edit. Constants of the CRC-32 kernels. */",
        "#ifndef WEIGHTMAP_CRC32_CONSTANTS_H",
        "#define WEIGHTMAP_CRC32_CONSTANTS_H",
        "",
        "/* TABLE(x^(8k + 32), ... x^(8k + 39), all mod P) for k = 0 to 15: the tables of crc32.c. */",
        define_list("CRC32_SLICES(TABLE)", [f"TABLE({words(basis)})" for basis in slice_bases()]),
        "",
        "/* Entry d of row k: x^(d * 16^k) mod P. */",
        define_list("CRC32_POWERS", halves),
        "",
        "/* Folding by n blocks of 128 bits: x^(128n + 63) and x^(128n - 1) mod P, in the upper half of 64 bits. */",
    ]
    for n in FOLD_BLOCKS:
        lines.append(f"#define CRC32_FOLD_{n}_LOW 0x{x_to_the(128 * n + 63) << 32:016x}")
        lines.append(f"#define CRC32_FOLD_{n}_HIGH 0x{x_to_the(128 * n - 1) << 32:016x}")
    barrett = int(f"{quotient(95):064b}"[::-1], 2)
    lines += [
        "",
        "/* The last step, 128 bits to 32: x^95 mod P; floor(x^95 / P); P itself with its leading term. */",
        f"#define CRC32_X95 0x{x_to_the(95):016x}",
        f"#define CRC32_BARRETT 0x{barrett:016x}",
        f"#define CRC32_P 0x{P << 1 | 1:016x}",
        "",
        "/* Moving a register past s or 2s bytes: x^(8s - 33) and x^(16s - 33) mod P. */",
    ]
    for s in ARM_STRIDES:
        lines.append(f"#define CRC32_SKIP_{s} 0x{x_to_the(8 * s - 33):08x}")
        lines.append(f"#define CRC32_SKIP_{2 * s} 0x{x_to_the(16 * s - 33):08x}")
    return "\n".join([*lines, "", "#endif", ""])


if __name__ == "__main__":
    (Path(__file__).parent / "crc32_constants.h").write_text(header(), encoding="ascii")
