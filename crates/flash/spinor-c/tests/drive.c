/* A driver in C on the emulated chip: the raw bus, QPI with lines per phase, block functions with power cuts, and misuse. */
#include "siltstone_spinor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "line %d: not true: %s\n", __LINE__, #condition);   \
            exit(1);                                                            \
        }                                                                       \
        checks++;                                                               \
    } while (0)

static int checks;

/* The shape of littlefs: a context, and callbacks that return 0 or a negative error. */
struct config {
    void *context;
    int (*read)(const struct config *c, uint32_t block, uint32_t off, void *buffer, uint32_t size);
    int (*prog)(const struct config *c, uint32_t block, uint32_t off, const void *buffer, uint32_t size);
    int (*erase)(const struct config *c, uint32_t block);
    int (*sync)(const struct config *c);
};

static int flash_read(const struct config *c, uint32_t block, uint32_t off, void *buffer, uint32_t size) {
    return spinor_block_read(c->context, block, off, buffer, size);
}
static int flash_prog(const struct config *c, uint32_t block, uint32_t off, const void *buffer, uint32_t size) {
    return spinor_block_prog(c->context, block, off, buffer, size);
}
static int flash_erase(const struct config *c, uint32_t block) { return spinor_block_erase(c->context, block); }
static int flash_sync(const struct config *c) { return spinor_block_sync(c->context); }

static void command(spinor_chip *chip, uint8_t opcode) {
    CHECK(spinor_transact(chip, &opcode, 1, NULL, 0) == SPINOR_OK);
}

static void wait_ready(spinor_chip *chip) {
    uint64_t left = spinor_busy_for(chip);
    if (left != SPINOR_NEVER) spinor_advance(chip, left);
}

static void raw_bus(void) {
    const uint8_t read_id[] = {0x9F}, program[] = {0x02, 0, 0, 0, 'h', 'i'}, read[] = {0x03, 0, 0, 0};
    uint8_t id[3], data[3], status;
    spinor_counters counters;
    spinor_chip *chip = spinor_open("W25Q128JV", 1);
    CHECK(chip != NULL);
    CHECK(spinor_size(chip) == 16u << 20);
    CHECK(spinor_transact(chip, read_id, sizeof read_id, id, sizeof id) == SPINOR_OK);
    CHECK(id[0] == 0xEF && id[1] == 0x40 && id[2] == 0x18);
    command(chip, 0x06);
    CHECK(spinor_get_state(chip) == SPINOR_WRITE_ENABLED);
    CHECK(spinor_transact(chip, program, sizeof program, NULL, 0) == SPINOR_OK);
    CHECK(spinor_get_state(chip) == SPINOR_PROGRAMMING);
    CHECK(spinor_transact(chip, (const uint8_t *)"\x05", 1, &status, 1) == SPINOR_OK && (status & 1) == 1);
    CHECK(spinor_transact(chip, read, sizeof read, data, sizeof data) == SPINOR_OK);
    CHECK(strcmp(spinor_refusal(chip), "busy") == 0);
    wait_ready(chip);
    CHECK(spinor_transact(chip, read, sizeof read, data, sizeof data) == SPINOR_OK);
    CHECK(spinor_refusal(chip) == NULL && memcmp(data, "hi\xFF", 3) == 0);
    CHECK(memcmp(spinor_memory(chip), "hi", 2) == 0);
    CHECK(spinor_get_counters(chip, &counters) == SPINOR_OK);
    CHECK(counters.operations == 1 && counters.busy_polls == 1 && counters.refused == 1);
    spinor_close(chip);
}

static void quad(void) {
    spinor_chip *chip = spinor_open("W25Q128FV", 1);
    const uint8_t qe[] = {0x31, 0x02}, address[] = {0, 0, 0, 0xFF};
    uint8_t opcode, data[4];
    CHECK(chip != NULL);
    command(chip, 0x06);
    CHECK(spinor_transact(chip, qe, sizeof qe, NULL, 0) == SPINOR_OK);
    wait_ready(chip);
    CHECK(spinor_register(chip, "SR2") == 0x02);
    /* Quad I/O: opcode on one line, address and mode on four, dummy clocks, data on four. */
    opcode = 0xEB;
    spinor_select(chip);
    CHECK(spinor_write(chip, &opcode, 1, 1) == SPINOR_OK);
    CHECK(spinor_write(chip, address, 4, 4) == SPINOR_OK);
    spinor_dummy(chip, 4);
    CHECK(spinor_read(chip, data, 4, 4) == SPINOR_OK);
    spinor_deselect(chip);
    CHECK(data[0] == 0xFF && spinor_refusal(chip) == NULL);
    /* QPI: everything on four lines. */
    command(chip, 0x38);
    opcode = 0x9F;
    spinor_select(chip);
    CHECK(spinor_write(chip, &opcode, 1, 4) == SPINOR_OK);
    CHECK(spinor_read(chip, data, 3, 4) == SPINOR_OK);
    spinor_deselect(chip);
    CHECK(data[0] == 0xEF && data[1] == 0x40 && data[2] == 0x18);
    spinor_close(chip);
}

static void blocks(void) {
    spinor_geometry geometry;
    spinor_faults faults = spinor_no_faults();
    uint8_t data[4096], read[4096];
    long cut;
    spinor_chip *chip = spinor_open("W25Q64JV", 7);
    struct config c = {chip, flash_read, flash_prog, flash_erase, flash_sync};
    CHECK(spinor_get_geometry(chip, &geometry) == SPINOR_OK);
    CHECK(geometry.block_size == 4096 && geometry.block_count == 2048);
    memset(data, 0x5A, sizeof data);
    CHECK(c.erase(&c, 9) == 0 && c.prog(&c, 9, 0, data, sizeof data) == 0 && c.sync(&c) == 0);
    CHECK(c.read(&c, 9, 0, read, sizeof read) == 0 && memcmp(data, read, sizeof data) == 0);
    CHECK(spinor_erase_count(chip, 9 * 4096) == 1);
    CHECK(c.read(&c, 9, 4000, read, 97) == SPINOR_ERR_INVALID);
    CHECK(c.erase(&c, 2048) == SPINOR_ERR_INVALID && c.erase(&c, 0xFFFFFFFF) == SPINOR_ERR_INVALID);
    /* The power fails at each byte of the bus: what is there is old or new. */
    for (cut = 0; cut < 300; cut++) {
        faults.cut_bus_byte = cut;
        CHECK(c.erase(&c, 3) == 0);
        CHECK(spinor_set_faults(chip, &faults) == SPINOR_OK);
        if (c.prog(&c, 3, 0, data, 256) == 0) break;
        CHECK(spinor_get_state(chip) == SPINOR_POWER_DOWN && c.sync(&c) == SPINOR_ERR_IO);
        CHECK(spinor_set_faults(chip, NULL) == SPINOR_OK);
        spinor_power(chip, true);
        spinor_advance(chip, 10000000);
        CHECK(c.read(&c, 3, 0, read, 256) == 0);
        CHECK(read[0] == 0xFF || read[0] == 0x5A);
    }
    CHECK(cut > 256);
    spinor_close(chip);
}

static void misuse(void) {
    char error[80];
    uint8_t byte = 0;
    spinor_faults faults = spinor_no_faults();
    spinor_chip *chip;
    CHECK(spinor_open("W25Q9999", 1) == NULL && spinor_open(NULL, 1) == NULL);
    CHECK(spinor_open_toml("name = 7\n", 1, error, sizeof error) == NULL);
    CHECK(strncmp(error, "chip:1:", 7) == 0);
    CHECK(spinor_open_toml(NULL, 1, NULL, 0) == NULL);
    spinor_close(NULL);
    spinor_select(NULL);
    CHECK(spinor_size(NULL) == 0 && spinor_memory(NULL) == NULL && spinor_transfer(NULL, 1, 1) == 0xFF);
    CHECK(spinor_get_state(NULL) == SPINOR_INVALID && spinor_block_erase(NULL, 0) == SPINOR_ERR_INVALID);
    chip = spinor_open("MB85RS2MT", 1);
    CHECK(chip != NULL && spinor_block_erase(chip, 0) == SPINOR_ERR_UNSUPPORTED);
    CHECK(spinor_write(chip, NULL, 5, 1) == SPINOR_ERR_INVALID && spinor_write(chip, NULL, 0, 1) == SPINOR_OK);
    CHECK(spinor_write(chip, &byte, 1, 3) == SPINOR_ERR_INVALID);
    CHECK(spinor_read(chip, &byte, (size_t)-1, 1) == SPINOR_ERR_INVALID);
    CHECK(spinor_load(chip, &byte, 1) == SPINOR_ERR_INVALID);
    CHECK(spinor_register(chip, "none") == SPINOR_ERR_INVALID && spinor_register(chip, NULL) == SPINOR_ERR_INVALID);
    faults.flip_in = 2.0;
    CHECK(spinor_set_faults(chip, &faults) == SPINOR_ERR_INVALID);
    CHECK(spinor_get_counters(chip, NULL) == SPINOR_ERR_INVALID);
    spinor_set_trace(chip, 10);
    command(chip, 0x06);
    CHECK(spinor_trace(chip, 't', error, 5) > 5 && strlen(error) == 4);
    CHECK(spinor_trace(chip, 'v', NULL, 0) > 100 && spinor_trace(chip, 'x', error, 5) < 0);
    spinor_close(chip);
}

int main(void) {
    raw_bus();
    quad();
    blocks();
    misuse();
    printf("ok: %d checks\n", checks);
    return 0;
}
