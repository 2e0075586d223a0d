"""Writes the tables and constants of the CRC-32 kernels: `python csrc/gen_crc32.py` rewrites the two headers beside it.

A polynomial over GF(2) of degree below 32 is held *reflected*: bit 31 of the word is the coefficient of x^0, bit 0 that
of x^31. Everything below follows from one operation, multiplication by x modulo P.
"""

from itertools import combinations
from pathlib import Path

P = 0xEDB88320  # x^32 + x^26 + x^23 + ... + x + 1, reflected, the leading x^32 left out
ONE = 0x80000000  # the polynomial 1
FOLD_BLOCKS = (1, 2, 4, 8, 16, 32, 72)  # distances of folding, in blocks of 128 bits
AFFINE_STEP = 3 * 512  # bits from one block that is folded by matrices to the next
AFFINE_WINDOW = 6  # steps: how far the farthest of the four blocks may be that such a block is folded onto
ARM_STRIDES = (128, 1024)  # bytes of each of the three streams of the kernel for the arm64 CRC instructions
HERE = Path(__file__).parent


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


def slices() -> list[list[int]]:
    """Return 16 tables: entry b of table k is the register b followed by k + 1 zero bytes, that is b * x^(8k + 8)."""
    table = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = times_x(register)
        table.append(register)
    tables = [table]
    for _ in range(15):
        tables.append([entry >> 8 ^ table[entry & 255] for entry in tables[-1]])
    return tables


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


def affine_matrices(steps: tuple[int, ...]) -> list[int] | None:
    """Return the matrices that fold a byte onto four bytes, each so many steps on; or None where there are none.

    Bit k of a byte is the coefficient of x^(7 - k). Each of our eight powers of x is to be a sum of the 32 powers in
    the four bytes, found by elimination. A matrix is written as GF2P8AFFINEQB takes it: the mask of the bits that make
    up bit i of the product is byte 7 - i.
    """
    far = steps[-1]
    basis: list[tuple[int, int, int]] = []  # a vector, its highest bit, and the set of powers that it is a sum of

    def reduced(vector: int, powers: int) -> tuple[int, int]:
        for other, top, others in basis:
            if vector & top:
                vector, powers = vector ^ other, powers ^ others
        return vector, powers

    for j, step in enumerate(steps):
        for k in range(8):
            vector, powers = reduced(x_to_the(AFFINE_STEP * (far - step) + 7 - k), 1 << (8 * j + k))
            if not vector:
                return None  # one of the 32 is a sum of others
            basis.append((vector, 1 << (vector.bit_length() - 1), powers))
    matrices = [0] * len(steps)
    for k in range(8):
        _, powers = reduced(x_to_the(AFFINE_STEP * far + 7 - k), 0)
        for j in range(len(steps)):
            for i in range(8):
                if powers >> (8 * j + i) & 1:
                    matrices[j] |= 1 << (8 * (7 - i) + k)
    return matrices


def affine_folding() -> dict[int, int]:
    """Return distances in steps, the first that there are in order, with the matrix for each."""
    for steps in combinations(range(1, AFFINE_WINDOW + 1), 4):
        if matrices := affine_matrices(steps):
            return dict(zip(steps, matrices, strict=True))
    msg = "no four blocks within a window have independent powers"
    raise ValueError(msg)


def words(values: list[int], per_line: int = 8) -> str:
    """Return the values as lines of C hexadecimals."""
    rows = [values[i : i + per_line] for i in range(0, len(values), per_line)]
    return ",\n".join("     " + ", ".join(f"0x{value:08x}" for value in row) for row in rows)


def table_2d(name: str, tables: list[list[int]]) -> str:
    """Return the C definition of a two-dimensional table of uint32_t."""
    body = ",\n".join("    {\n" + words(table) + "}" for table in tables)
    return f"static const uint32_t {name}[{len(tables)}][{len(tables[0])}] = {{\n{body}}};\n"


def tables_header() -> str:
    """Return the text of crc32_tables.h."""
    return (
        "/* Written by `python csrc/gen_crc32.py`; do not edit. Tables of crc32.c. */\n"
        "#include <stdint.h>\n\n"
        "/* slices[k][b]: the register b after k + 1 zero bytes. */\n"
        + table_2d("slices", slices())
        + "\n/* powers[k][d]: x^(d * 16^k) mod P. */\n"
        + table_2d("powers", powers())
    )


def constants_header() -> str:
    """Return the text of crc32_constants.h."""
    lines = [
        "/* Written by `python csrc/gen_crc32.py`; do not edit. Constants of the CRC-32 kernels that",
        " * multiply without carries; x86/crc32_pclmulqdq.c tells what they mean. */",
        "#ifndef WEIGHTMAP_CRC32_CONSTANTS_H",
        "#define WEIGHTMAP_CRC32_CONSTANTS_H",
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
    lines += [
        "",
        f"/* Folding by matrices onto blocks n steps of {AFFINE_STEP // 8} bytes on; see x86/crc32_mixed.c. */",
        *(f"#define CRC32_AFFINE_{steps} 0x{matrix:016x}" for steps, matrix in affine_folding().items()),
    ]
    return "\n".join([*lines, "", "#endif", ""])


if __name__ == "__main__":
    (HERE / "crc32_tables.h").write_text(tables_header(), encoding="ascii")
    (HERE / "crc32_constants.h").write_text(constants_header(), encoding="ascii")
