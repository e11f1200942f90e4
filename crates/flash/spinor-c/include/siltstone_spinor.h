/* SPI NOR flash chips, emulated from tables, for programs in C. Made by cbindgen from crates/flash/spinor-c.
 *
 * A chip belongs to one thread at a time. NULL, wrong lengths and unknown numbers are errors, never undefined behaviour;
 * a pointer that is neither NULL nor an open chip is, and so are buffers that overlap each other or the memory of
 * spinor_memory(). Times are in nanoseconds of the chip's own time. */

#ifndef SILTSTONE_SPINOR_H
#define SILTSTONE_SPINOR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Success.
#define SPINOR_OK 0

// The chip is off, refused the command or remains busy; LFS_ERR_IO of littlefs.
#define SPINOR_ERR_IO -5

// A pointer is NULL, or a number out of range; LFS_ERR_INVAL of littlefs.
#define SPINOR_ERR_INVALID -22

// The chip doesn't support this, such as the erase of a block of an FRAM.
#define SPINOR_ERR_UNSUPPORTED -95

// Time of a chip that isn't busy, or whose operation doesn't end by time.
#define SPINOR_NEVER 18446744073709551615ull

// State of the chip.
typedef enum spinor_state {
  // `chip` was NULL, or a panic broke it.
  SPINOR_INVALID = -1,
  // No supply.
  SPINOR_POWER_DOWN = 0,
  // Supply present, but tVSL has not passed.
  SPINOR_POWER_UP = 1,
  // Ready.
  SPINOR_STANDBY = 2,
  // Ready with the write enable latch set.
  SPINOR_WRITE_ENABLED = 3,
  // A program runs.
  SPINOR_PROGRAMMING = 4,
  // An erase runs.
  SPINOR_ERASING = 5,
  // A register write runs.
  SPINOR_WRITING_REGISTER = 6,
  // No command is accepted: after a reset, or while entering or leaving deep power-down.
  SPINOR_RECOVERING = 7,
  // A program is suspended.
  SPINOR_PROGRAM_SUSPENDED = 8,
  // An erase is suspended.
  SPINOR_ERASE_SUSPENDED = 9,
  // Deep power-down.
  SPINOR_DEEP_POWER_DOWN = 10,
  // The next transaction begins with an address.
  SPINOR_CONTINUOUS_READ = 11,
  // AAI programming mode.
  SPINOR_AAI_PROGRAMMING = 12,
} spinor_state;

// A flash chip.
typedef struct spinor_chip spinor_chip;

// Active faults.
typedef struct spinor_faults {
  // Cut the power after this number of further bytes on the bus; negative: never.
  int64_t cut_bus_byte;
  // Cut the power during an operation, after this number of further ones; negative: never.
  int64_t cut_operation;
  // Share of that operation's time that passes before the cut, 0 to 1.
  double cut_fraction;
  // Probability that a byte from the host arrives with one bit flipped.
  double flip_in;
  // Probability that a byte from the chip arrives with one bit flipped.
  double flip_out;
  // After this number of further operations, one never ends; negative: never.
  int64_t stuck_busy;
  // Whether cells wear beyond the chip's endurance.
  bool wear;
  // Mean number of bytes read in a sector for one read-disturb bit flip in it; 0 for none.
  uint64_t read_disturb;
} spinor_faults;

// Counters of the chip.
typedef struct spinor_counters {
  // Transactions with at least one clock.
  uint64_t transactions;
  // Bytes on the bus.
  uint64_t bus_bytes;
  // Bytes read from the array.
  uint64_t bytes_read;
  // Programs, erases and register writes.
  uint64_t operations;
  // Status reads while busy.
  uint64_t busy_polls;
  // Bytes whose program contained a 1 for a cell that is 0.
  uint64_t overwrites;
  // Transactions faster than the command allows.
  uint64_t too_fast;
  // Bits flipped by faults.
  uint64_t flipped_bits;
  // Refused commands.
  uint64_t refused;
} spinor_counters;

// Sizes for `struct lfs_config`.
typedef struct spinor_geometry {
  // Smallest read in bytes.
  uint32_t read_size;
  // Smallest program in bytes.
  uint32_t prog_size;
  // Block size in bytes.
  uint32_t block_size;
  // Number of blocks.
  uint32_t block_count;
  // Erases of a block that the datasheet guarantees.
  uint32_t endurance;
} spinor_geometry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens an erased chip of the library, such as "W25Q128JV". The seed determines the unique ID and all
// randomness. Returns NULL for an unknown name.
struct spinor_chip *spinor_open(const char *name,
                                uint64_t seed);

// Opens an erased chip from the text of a chip file. Returns NULL for an error, which is written to `error`
// with line and column.
struct spinor_chip *spinor_open_toml(const char *toml,
                                     uint64_t seed,
                                     char *error,
                                     size_t error_size);

// Closes a chip. Does nothing for NULL.
void spinor_close(struct spinor_chip *chip);

// Returns the size of the array in bytes; 0 for NULL.
uint32_t spinor_size(struct spinor_chip *chip);

// Returns the array's raw cells, spinor_size() bytes, valid until the next call with this chip; NULL for
// NULL.
const uint8_t *spinor_memory(struct spinor_chip *chip);

// Replaces the array's cells; `length` must be the chip's size.
int32_t spinor_load(struct spinor_chip *chip, const uint8_t *bytes, size_t length);

// Lowers CS#: a transaction begins.
void spinor_select(struct spinor_chip *chip);

// Raises CS#: the command takes effect.
void spinor_deselect(struct spinor_chip *chip);

// Exchanges a byte on 1, 2 or 4 lines: full duplex on one line, otherwise returns the chip's byte while it
// drives the lines. Returns FFh for an error.
uint8_t spinor_transfer(struct spinor_chip *chip,
                        uint8_t byte,
                        uint8_t lines);

// Sends bytes on 1, 2 or 4 lines: a phase of a transaction.
int32_t spinor_write(struct spinor_chip *chip, const uint8_t *bytes, size_t length, uint8_t lines);

// Reads bytes on 1, 2 or 4 lines: a phase of a transaction.
int32_t spinor_read(struct spinor_chip *chip, uint8_t *bytes, size_t length, uint8_t lines);

// Passes dummy clocks, during which the master drives no line.
void spinor_dummy(struct spinor_chip *chip, uint32_t clocks);

// Passes one clock: bits 0 to 3 of `pins` are the levels of IO0 to IO3 from the master, 1 for lines that it
// doesn't drive. Returns the levels from the chip, 1 for lines that it doesn't drive.
uint8_t spinor_clock(struct spinor_chip *chip,
                     uint8_t pins);

// Executes a whole transaction on one line: selects, sends, reads, deselects.
int32_t spinor_transact(struct spinor_chip *chip,
                        const uint8_t *sent,
                        size_t sent_length,
                        uint8_t *received,
                        size_t received_length);

// Advances the chip's time.
void spinor_advance(struct spinor_chip *chip, uint64_t nanoseconds);

// Returns the chip's time.
uint64_t spinor_now(struct spinor_chip *chip);

// Returns the time until the running operation ends; SPINOR_NEVER if none runs, or if it ends by polls or
// never.
uint64_t spinor_busy_for(struct spinor_chip *chip);

// Sets whether operations take the typical or the maximum time of the datasheet.
void spinor_set_busy_time(struct spinor_chip *chip, bool maximum);

// Makes operations end after this number of polls of the status; 0 ends them at once.
void spinor_set_busy_polls(struct spinor_chip *chip, uint32_t polls);

// Sets the bus clock in hertz; 0 if unknown. With `passes_time`, its clocks advance the chip's time.
void spinor_set_clock(struct spinor_chip *chip, uint32_t hertz, bool passes_time);

// Switches the supply. Off leaves a running operation half-done; after on, the start-up times have to pass.
void spinor_power(struct spinor_chip *chip,
                  bool on);

// Sets the supply voltage in millivolts.
void spinor_set_supply(struct spinor_chip *chip, uint32_t millivolts);

// Drives WP#.
void spinor_set_wp(struct spinor_chip *chip, bool high);

// Drives HOLD# or RESET#, whichever the chip has.
void spinor_set_hold_reset(struct spinor_chip *chip, bool high);

// Returns faults that never occur.
struct spinor_faults spinor_no_faults(void);

// Sets the active faults; NULL for none.
int32_t spinor_set_faults(struct spinor_chip *chip, const struct spinor_faults *faults);

// Returns the chip's state.
enum spinor_state spinor_get_state(struct spinor_chip *chip);

// Writes the counters to `counters`.
int32_t spinor_get_counters(struct spinor_chip *chip, struct spinor_counters *counters);

// Returns the erase count of the sector at an address; 0 for an error.
uint32_t spinor_erase_count(struct spinor_chip *chip, uint32_t address);

// Returns a register's value by its name in the datasheet, such as "SR1"; SPINOR_ERR_INVALID for an unknown
// name.
int32_t spinor_register(struct spinor_chip *chip,
                        const char *name);

// Returns the reason for which the last transaction was ignored, as a text that is never freed; NULL if it
// wasn't ignored.
const char *spinor_refusal(struct spinor_chip *chip);

// Keeps the last transactions for spinor_trace(); 0 keeps none.
void spinor_set_trace(struct spinor_chip *chip, size_t transactions);

// Writes the kept transactions as text: 't', JSON lines: 'j', or a value change dump of the bus: 'v'.
// Returns the length of the whole text, as snprintf does; a negative number for an error.
int64_t spinor_trace(struct spinor_chip *chip,
                     char form,
                     char *buffer,
                     size_t size);

// Writes the sizes to `geometry`. Returns an error for chips without an erase of 4 KiB.
int32_t spinor_get_geometry(struct spinor_chip *chip, struct spinor_geometry *geometry);

// Reads from a block: the callback `read`.
int32_t spinor_block_read(struct spinor_chip *chip,
                          uint32_t block,
                          uint32_t offset,
                          uint8_t *buffer,
                          uint32_t size);

// Programs a part of a block: the callback `prog`.
int32_t spinor_block_prog(struct spinor_chip *chip,
                          uint32_t block,
                          uint32_t offset,
                          const uint8_t *buffer,
                          uint32_t size);

// Erases a block: the callback `erase`.
int32_t spinor_block_erase(struct spinor_chip *chip, uint32_t block);

// Does nothing, since the chip has no cache: the callback `sync`. Fails for NULL and for a chip without
// power.
int32_t spinor_block_sync(struct spinor_chip *chip);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SILTSTONE_SPINOR_H */
