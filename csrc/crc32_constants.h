/* Written by `python csrc/gen_crc32.py`; do not edit. Constants of the CRC-32 kernels. */
#ifndef WEIGHTMAP_CRC32_CONSTANTS_H
#define WEIGHTMAP_CRC32_CONSTANTS_H

/* TABLE(x^(8k + 32), ... x^(8k + 39), all mod P) for k = 0 to 15: the tables of crc32.c. */
#define CRC32_SLICES(TABLE) \
    TABLE(0xedb88320, 0x76dc4190, 0x3b6e20c8, 0x1db71064, 0x0edb8832, 0x076dc419, 0xee0e612c, 0x77073096), \
    TABLE(0x3b83984b, 0xf0794f05, 0x958424a2, 0x4ac21251, 0xc8d98a08, 0x646cc504, 0x32366282, 0x191b3141), \
    TABLE(0xe1351b80, 0x709a8dc0, 0x384d46e0, 0x1c26a370, 0x0e1351b8, 0x0709a8dc, 0x0384d46e, 0x01c26a37), \
    TABLE(0xed59b63b, 0x9b14583d, 0xa032af3e, 0x5019579f, 0xc5b428ef, 0x8f629757, 0xaa09c88b, 0xb8bc6765), \
    TABLE(0xb1e6b092, 0x58f35849, 0xc1c12f04, 0x60e09782, 0x30704bc1, 0xf580a6c0, 0x7ac05360, 0x3d6029b0), \
    TABLE(0x1eb014d8, 0x0f580a6c, 0x07ac0536, 0x03d6029b, 0xec53826d, 0x9b914216, 0x4dc8a10b, 0xcb5cd3a5), \
    TABLE(0x8816eaf2, 0x440b7579, 0xcfbd399c, 0x67de9cce, 0x33ef4e67, 0xf44f2413, 0x979f1129, 0xa6770bb4), \
    TABLE(0x533b85da, 0x299dc2ed, 0xf9766256, 0x7cbb312b, 0xd3e51bb5, 0x844a0efa, 0x4225077d, 0xccaa009e), \
    TABLE(0x6655004f, 0xde920307, 0x82f182a3, 0xacc04271, 0xbbd8a218, 0x5dec510c, 0x2ef62886, 0x177b1443), \
    TABLE(0xe6050901, 0x9eba07a0, 0x4f5d03d0, 0x27ae81e8, 0x13d740f4, 0x09eba07a, 0x04f5d03d, 0xefc26b3e), \
    TABLE(0x77e1359f, 0xd64819ef, 0x869c8fd7, 0xaef6c4cb, 0xbac3e145, 0xb0d97382, 0x586cb9c1, 0xc18edfc0), \
    TABLE(0x60c76fe0, 0x3063b7f0, 0x1831dbf8, 0x0c18edfc, 0x060c76fe, 0x03063b7f, 0xec3b9e9f, 0x9ba54c6f), \
    TABLE(0xa06a2517, 0xbd8d91ab, 0xb37e4bf5, 0xb407a6da, 0x5a03d36d, 0xc0b96a96, 0x605cb54b, 0xdd96d985), \
    TABLE(0x8373efe2, 0x41b9f7f1, 0xcd6478d8, 0x66b23c6c, 0x33591e36, 0x19ac8f1b, 0xe16ec4ad, 0x9d0fe176), \
    TABLE(0x4e87f0bb, 0xcafb7b7d, 0x88c53e9e, 0x44629f4f, 0xcf89cc87, 0x8a7c6563, 0xa886b191, 0xb9fbdbe8), \
    TABLE(0x5cfdedf4, 0x2e7ef6fa, 0x173f7b7d, 0xe6273e9e, 0x73139f4f, 0xd4314c87, 0x87a02563, 0xae689191)

/* Entry d of row k: x^(d * 16^k) mod P. */
#define CRC32_POWERS \
    {0x80000000, 0x40000000, 0x20000000, 0x10000000, 0x08000000, 0x04000000, 0x02000000, 0x01000000, \
    0x00800000, 0x00400000, 0x00200000, 0x00100000, 0x00080000, 0x00040000, 0x00020000, 0x00010000}, \
    {0x80000000, 0x00008000, 0xedb88320, 0xe1351b80, 0xb1e6b092, 0x8816eaf2, 0x6655004f, 0x77e1359f, \
    0xa06a2517, 0x4e87f0bb, 0xba8ccbe8, 0x9a11d850, 0x32b39da3, 0x0b943260, 0xad2a31b3, 0x9e36506b}, \
    {0x80000000, 0xed627dae, 0x88d14467, 0xe5b592b8, 0xd7bbfe6a, 0x0eaee722, 0x62b6ca4b, 0x6b1d2b53, \
    0xec447f11, 0x08229c67, 0x7c69160d, 0x894eaf8c, 0xb72d2b3c, 0x8d8f12af, 0xb34988bb, 0x8ab14358}, \
    {0x80000000, 0x8e7ea170, 0x6427800e, 0xbf110f7e, 0x4d47bae0, 0x0b19ae7f, 0x6347a4bd, 0x13d40d42, \
    0x09fe548f, 0x5f58ea19, 0x923b0526, 0xced83e9e, 0x552d4042, 0x35f2abeb, 0x63c21244, 0x196613fe}, \
    {0x80000000, 0x83852d0f, 0x30362f1a, 0xf27674ad, 0x7b5a9cc3, 0xc99622b9, 0xec735cea, 0x0f9f0002, \
    0x31fec169, 0x07d49af9, 0xcd7260f4, 0x28d20d79, 0x2c41450b, 0x634e79bd, 0xc51eaa45, 0xc18e0eba}, \
    {0x80000000, 0x9fec022a, 0x6c8dedc4, 0x0abf1a4f, 0x15d6874d, 0xaddc2f07, 0x07474644, 0xfb765627, \
    0x5fde7a4e, 0x6346c443, 0x1d1e31ab, 0x46711481, 0xfe664796, 0x10bde07f, 0xe32bdb84, 0x0618410a}, \
    {0x80000000, 0xbad90e37, 0x2e4e5eef, 0x725d2aad, 0x4eaba214, 0x36a60923, 0xdfcd2365, 0x2177bc48, \
    0xa8a472c0, 0x5856f788, 0x6233c33d, 0x97259767, 0x6afbb0f7, 0xdc6d4cf8, 0x7e7c0c26, 0x3261eb50}, \
    {0x80000000, 0x429a969e, 0x148d302a, 0x6633295b, 0xc40ba6d0, 0x9c7b4c60, 0x966bbc20, 0xa1c375b0, \
    0xc4e22c3c, 0xdb0db1dc, 0x2197a1f3, 0x63272c8f, 0x2f51afe5, 0x5b45b54c, 0x18a9b1aa, 0xbb205d07}

/* Folding by n blocks of 128 bits: x^(128n + 63) and x^(128n - 1) mod P, in the upper half of 64 bits. */
#define CRC32_FOLD_1_LOW 0x65673b4600000000
#define CRC32_FOLD_1_HIGH 0x9ba54c6f00000000
#define CRC32_FOLD_2_LOW 0x9570d49500000000
#define CRC32_FOLD_2_HIGH 0x01b5fd1d00000000
#define CRC32_FOLD_4_LOW 0x653d982200000000
#define CRC32_FOLD_4_HIGH 0xcad38e8f00000000
#define CRC32_FOLD_6_LOW 0x759fc69d00000000
#define CRC32_FOLD_6_HIGH 0x101a233100000000
#define CRC32_FOLD_8_LOW 0x7d657a1000000000
#define CRC32_FOLD_8_HIGH 0x7406fa9500000000
#define CRC32_FOLD_12_LOW 0x67f7947600000000
#define CRC32_FOLD_12_HIGH 0xc56d949600000000
#define CRC32_FOLD_16_LOW 0x7cc8e1e700000000
#define CRC32_FOLD_16_HIGH 0x03f9f86300000000
#define CRC32_FOLD_20_LOW 0xc2d4d8b300000000
#define CRC32_FOLD_20_HIGH 0xf8d22c1a00000000
#define CRC32_FOLD_24_LOW 0x0c1bd37000000000
#define CRC32_FOLD_24_HIGH 0xb52b503900000000
#define CRC32_FOLD_32_LOW 0xe4e4561000000000
#define CRC32_FOLD_32_HIGH 0xc78c44a100000000
#define CRC32_FOLD_63_LOW 0x3afb819b00000000
#define CRC32_FOLD_63_HIGH 0x91bd88e500000000
#define CRC32_FOLD_72_LOW 0x8d42545500000000
#define CRC32_FOLD_72_HIGH 0xb9f7d0f100000000
#define CRC32_FOLD_126_LOW 0x3e82004800000000
#define CRC32_FOLD_126_HIGH 0x44b4fd5200000000
#define CRC32_FOLD_149_LOW 0x0f34093a00000000
#define CRC32_FOLD_149_HIGH 0x696668ac00000000
#define CRC32_FOLD_294_LOW 0x764baef600000000
#define CRC32_FOLD_294_HIGH 0x34b4ad3000000000
#define CRC32_FOLD_298_LOW 0x0f784b3b00000000
#define CRC32_FOLD_298_HIGH 0x427ca5d200000000

/* The last step, 128 bits to 32: x^95 mod P; floor(x^95 / P); P itself with its leading term. */
#define CRC32_X95 0x00000000ccaa009e
#define CRC32_BARRETT 0xb4e5b025f7011641
#define CRC32_P 0x00000001db710641
#define CRC32_REFLECTED 0xedb88320

/* Moving a register past s or 2s bytes: x^(8s - 33) and x^(16s - 33) mod P. */
#define CRC32_SKIP_128 0x910eeec1
#define CRC32_SKIP_256 0xe95c1271
#define CRC32_SKIP_1024 0xbbf2f6d6
#define CRC32_SKIP_2048 0x7b4aa8b7

/* Folding by matrices, onto blocks n x 192 bytes on: x86/crc32_vpclmulqdq_avx512.c. */
#define CRC32_AFFINE_1 0x1b1e305e9b110a15
#define CRC32_AFFINE_2 0x0d180e04051c081e
#define CRC32_AFFINE_4 0x0f3753bc6fe3d186
#define CRC32_AFFINE_6 0x2a4d983c538f1c0a

/* How many registers behind a register its copies are added; see x86/crc32_add.h. */
#define CRC32_ADD_1 145
#define CRC32_ADD_2 183
#define CRC32_ADD_3 211
#define CRC32_ADD_4 300

#endif
