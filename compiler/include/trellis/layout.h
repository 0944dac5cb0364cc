/* layout.h - where a region in a store lies in the address space of every process.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Promises: the same numbers for the compiler pass, the C runtime and the Rust runtime, which compares itself with this
 * file in a test. Plain decimal or hexadecimal constants only, one for each line, so that a test can read them.
 * It must never change without a new TRELLIS_COMPILED_ABI (compiled.h), because programs have these constants in their
 * instructions.
 */
#ifndef TRELLIS_LAYOUT_H
#define TRELLIS_LAYOUT_H

/* First address of a region, a multiple of SPAN. A check is (address - BASE) < SPAN, or address / SPAN == BASE / SPAN.
 */
#define TRELLIS_REGION_BASE 0x200000000000
/* Reserved address space of a region in bytes: 1 TiB, 2^40. */
#define TRELLIS_REGION_SPAN 0x10000000000

/* A line is the unit of the inline check in mode `line`. */
#define TRELLIS_LINE_BYTES 64
/* log2 of TRELLIS_LINE_BYTES. */
#define TRELLIS_LINE_SHIFT 6
/* One state byte for each line lies at LINE_STATES + ((address - BASE) >> LINE_SHIFT). */
#define TRELLIS_LINE_STATES 0x1f0000000000
/* Address space of the table: SPAN / LINE_BYTES, reserved and filled when touched. */
#define TRELLIS_LINE_STATES_BYTES 0x400000000
/* Bit of a state byte: the line may be read where it lies. */
#define TRELLIS_LINE_READABLE 1
/* Bit of a state byte: the line may be written where it lies. */
#define TRELLIS_LINE_WRITABLE 2

#endif
