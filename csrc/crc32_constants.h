/* Written by gen_crc32.py; do not edit. Constants of the CRC-32 kernels that multiply without carries; see
 * x86/crc32_pclmulqdq.c for what they mean. */
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
#define CRC32_FOLD_12_LOW 0x67f7947600000000
#define CRC32_FOLD_12_HIGH 0xc56d949600000000
#define CRC32_FOLD_16_LOW 0x7cc8e1e700000000
#define CRC32_FOLD_16_HIGH 0x03f9f86300000000
#define CRC32_FOLD_32_LOW 0xe4e4561000000000
#define CRC32_FOLD_32_HIGH 0xc78c44a100000000
#define CRC32_FOLD_64_LOW 0x0c7f3fc700000000
#define CRC32_FOLD_64_HIGH 0xc84f001c00000000

/* The last step, 128 bits to 32: x^95 mod P; floor(x^95 / P); P itself with its leading term. */
#define CRC32_X95 0x00000000ccaa009e
#define CRC32_BARRETT 0xb4e5b025f7011641
#define CRC32_P 0x00000001db710641

/* Moving a register past s or 2s bytes: x^(8s - 33) and x^(16s - 33) mod P. */
#define CRC32_SKIP_128 0x910eeec1
#define CRC32_SKIP_256 0xe95c1271
#define CRC32_SKIP_1024 0xbbf2f6d6
#define CRC32_SKIP_2048 0x7b4aa8b7

#endif
