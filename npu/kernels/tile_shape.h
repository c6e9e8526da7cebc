// Sizes of one core's attention: the matrix unit's tile of the chip, and what fits into a core's memory.
//
// A team of cores has one stream from memory, which is broadcast to all of them. It has buffers of 8 KB: those that open
// an item (parameters, then queries), then one for each chunk of keys and values. An item's strips of rows go round the
// cores of the team. unicorn_async/npu/geometry.py states the same sizes for the host.
#pragma once

#include <stdint.h>

// Program memory is 16 KB: loops stay loops, but for those over accumulators, which have to be registers.
#ifdef __clang__
#define ROLLED _Pragma("clang loop unroll(disable)")
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define ROLLED
#define UNROLLED
#endif

#ifndef HEAD_DIM
#error "HEAD_DIM: expected -DHEAD_DIM=64, 128 or 256"
#endif

// bf16 products of the matrix unit: (M × DEPTH) · (DEPTH × N); npu1 is AIE2 (20), npu2 is AIE2P (21), whose API emulates
// this shape by eight element-wise products: native there are int8 and bfp16 of 8 × 8 × 8. A build may have the latter:
// the API then rounds bf16 operands to it, eight along DEPTH with one exponent, and a product takes two tiles of M. Nothing
// else changes, neither layouts nor what the lanes of a vector are.
constexpr unsigned M = 4;
constexpr unsigned DEPTH = 8;
#if AIE_ARCH == 20
constexpr unsigned N = 4;
#elif AIE_ARCH == 21
constexpr unsigned N = 8;
#else
#error "AIE_ARCH: expected 20 (npu1) or 21 (npu2)"
#endif
#ifdef AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
constexpr unsigned TILES_OF_PRODUCT = 2;
static_assert(AIE_ARCH == 21, "bfp16 is npu2's");
#else
constexpr unsigned TILES_OF_PRODUCT = 1;
#endif

constexpr unsigned TEAM = 2;                    // cores
constexpr unsigned LANES = M * N;               // of a vector that holds one result tile; lane i belongs to row i % N
constexpr unsigned CORE_BUFFER_BYTES = 8192;
constexpr unsigned KEYS = 2048 / HEAD_DIM;      // of a chunk: K and V in bf16 fill a buffer
constexpr unsigned ROWS = 4096 / HEAD_DIM;      // pairs of a query and a head, of a core: they fill a buffer too
constexpr unsigned STRIPS = ROWS / N;           // of a core, and of a buffer of queries; N rows are worked on at a time
constexpr unsigned KEY_TILES = KEYS / M;
constexpr unsigned KEY_STEPS = KEYS / DEPTH;    // of P · V
constexpr unsigned DIM_STEPS = HEAD_DIM / DEPTH;  // of K · Qᵀ
constexpr unsigned DIM_TILES = HEAD_DIM / M;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM: expected 64, 128 or 256");
static_assert(2 * KEYS * HEAD_DIM * 2 == CORE_BUFFER_BYTES, "a chunk fills a buffer exactly");
static_assert(ROWS * HEAD_DIM * 2 == CORE_BUFFER_BYTES, "a core's queries fill a buffer exactly");
static_assert(KEYS % DEPTH == 0 && ROWS % N == 0, "tiles cover a chunk and an item");
static_assert(STRIPS % TEAM == 0, "every buffer of queries has as many strips for each core");

struct Header {
  int32_t chunks;     // buffers of keys and values that follow
  int32_t strips;     // in use, of all cores together
  int32_t base;       // position of the first chunk's first key
  float soft_cap;     // of scores, where is_capped
  int32_t is_capped;  // a whole number, because a core compares floats by a call
  int32_t reserved[11];
};

// The first buffer of an item. A row sees the keys from first to last, both included, which says windows, causality and
// padding (last < first) in one form; the bounds are repeated for the M keys of a tile.
struct Parameters {
  Header header;
  int32_t first[TEAM * STRIPS * LANES];  // (strips, M, N)
  int32_t last[TEAM * STRIPS * LANES];   // (strips, M, N)
};
static_assert(sizeof(Parameters) <= CORE_BUFFER_BYTES, "parameters fit into a buffer");
