/* Written by `python csrc/gen_crc32.py`; do not edit. Constants of the CRC-32 kernels that
 * multiply without carries; x86/crc32_pclmulqdq.c tells what they mean. */
#ifndef WEIGHTMAP_CRC32_CONSTANTS_H
#define WEIGHTMAP_CRC32_CONSTANTS_H

/* Folding by n blocks of 128 bits: x^(128n + 63) and x^(128n - 1) mod P, in the upper half of 64 bits. */
#define CRC32_FOLD_1_LOW 0x65673b4600000000
#define CRC32_FOLD_1_HIGH 0x9ba54c6f00000000
#define CRC32_FOLD_2_LOW 0x9570d49500000000
#define CRC32_FOLD_2_HIGH 0x01b5fd1d00000000
#define CRC32_FOLD_4_LOW 0x653d982200000000
#define CRC32_FOLD_4_HIGH 0xcad38e8f00000000
#define CRC32_FOLD_8_LOW 0x7d657a1000000000
#define CRC32_FOLD_8_HIGH 0x7406fa9500000000
#define CRC32_FOLD_16_LOW 0x7cc8e1e700000000
#define CRC32_FOLD_16_HIGH 0x03f9f86300000000
#define CRC32_FOLD_32_LOW 0xe4e4561000000000
#define CRC32_FOLD_32_HIGH 0xc78c44a100000000
#define CRC32_FOLD_72_LOW 0x8d42545500000000
#define CRC32_FOLD_72_HIGH 0xb9f7d0f100000000

/* The last step, 128 bits to 32: x^95 mod P; floor(x^95 / P); P itself with its leading term. */
#define CRC32_X95 0x00000000ccaa009e
#define CRC32_BARRETT 0xb4e5b025f7011641
#define CRC32_P 0x00000001db710641

/* Moving a register past s or 2s bytes: x^(8s - 33) and x^(16s - 33) mod P. */
#define CRC32_SKIP_128 0x910eeec1
#define CRC32_SKIP_256 0xe95c1271
#define CRC32_SKIP_1024 0xbbf2f6d6
#define CRC32_SKIP_2048 0x7b4aa8b7

/* Folding by matrices onto blocks n steps of 192 bytes on; see x86/crc32_mixed.c. */
#define CRC32_AFFINE_1 0x1b1e305e9b110a15
#define CRC32_AFFINE_2 0x0d180e04051c081e
#define CRC32_AFFINE_4 0x0f3753bc6fe3d186
#define CRC32_AFFINE_6 0x2a4d983c538f1c0a

#endif
