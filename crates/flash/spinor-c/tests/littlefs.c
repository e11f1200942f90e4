/* littlefs on the emulated chip through the block functions, with the power cut at every byte of the bus. After each cut the file
 * system is mounted again: each file is the old or the new one, and the new one if its change was acknowledged.
 *
 * Argument: a chip file; littlefs takes the whole chip. */
#include "lfs.h"
#include "siltstone_spinor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s: line %d: not true: %s\n", subject, __LINE__, #condition);          \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* Current step, for messages. */
static char subject[100] = "start";

static int flash_read(const struct lfs_config *c, lfs_block_t block, lfs_off_t off, void *buffer, lfs_size_t size) {
    return spinor_block_read(c->context, block, off, buffer, size);
}
static int flash_prog(const struct lfs_config *c, lfs_block_t block, lfs_off_t off, const void *buffer, lfs_size_t size) {
    return spinor_block_prog(c->context, block, off, buffer, size);
}
static int flash_erase(const struct lfs_config *c, lfs_block_t block) { return spinor_block_erase(c->context, block); }
static int flash_sync(const struct lfs_config *c) { return spinor_block_sync(c->context); }

/* Contents of a file: bytes that depend on a seed. */
#define LONGEST 1000
typedef struct contents {
    uint32_t seed, length;
} contents;

static uint8_t byte_of(uint32_t seed, uint32_t at) { return (uint8_t)((seed * 2654435761u + at * 40503u) >> 7); }

static const uint8_t *bytes_of(contents wanted) {
    static uint8_t bytes[LONGEST];
    for (uint32_t at = 0; at < wanted.length; at++) bytes[at] = byte_of(wanted.seed, at);
    return bytes;
}

/* Writes a file, from its start or at its end. Returns whether littlefs acknowledged it. */
static bool store(lfs_t *lfs, const char *name, int flags, contents wanted) {
    lfs_file_t file;
    if (lfs_file_open(lfs, &file, name, LFS_O_WRONLY | LFS_O_CREAT | flags) != 0) return false;
    bool is_written = lfs_file_write(lfs, &file, bytes_of(wanted), wanted.length) == (lfs_ssize_t)wanted.length &&
                      lfs_file_sync(lfs, &file) == 0;
    return lfs_file_close(lfs, &file) == 0 && is_written;
}

/* Returns whether a file consists of these contents, one after the other. */
static bool holds(lfs_t *lfs, const char *name, contents first, contents second) {
    static uint8_t read[LONGEST + 1];
    lfs_file_t file;
    if (lfs_file_open(lfs, &file, name, LFS_O_RDONLY) != 0) return false;
    lfs_ssize_t length = lfs_file_read(lfs, &file, read, sizeof read);
    CHECK(lfs_file_close(lfs, &file) == 0);
    return length == (lfs_ssize_t)(first.length + second.length) && memcmp(read, bytes_of(first), first.length) == 0 &&
           memcmp(read + first.length, bytes_of(second), second.length) == 0;
}

static bool exists(lfs_t *lfs, const char *name) {
    struct lfs_info info;
    int status = lfs_stat(lfs, name, &info);
    CHECK(status == 0 || status == LFS_ERR_NOENT);
    return status == 0;
}

static const contents nothing = {0, 0}, settings_old = {1, 40}, settings_new = {11, 60}, log_old = {2, 150}, log_more = {12, 70},
                      firmware_old = {3, 400}, firmware_new = {13, 300}, later = {21, 50};

static void prepare(lfs_t *lfs) {
    CHECK(store(lfs, "settings", 0, settings_old) && store(lfs, "log", 0, log_old));
    CHECK(store(lfs, "firmware", 0, firmware_old));
}

/* Changes a file: one of STEPS steps. Returns whether littlefs acknowledged it. */
#define STEPS 3
static bool change(lfs_t *lfs, int step) {
    switch (step) {
    case 0: return store(lfs, "settings", LFS_O_TRUNC, settings_new);
    case 1: return store(lfs, "log", LFS_O_APPEND, log_more);
    default: return store(lfs, "firmware.new", LFS_O_TRUNC, firmware_new) && lfs_rename(lfs, "firmware.new", "firmware") == 0;
    }
}

/* Checks each file: the new one if its step was acknowledged, the old one if its step was not begun, else one of the two. Returns the
 * number of steps that are found done. */
static int judge(lfs_t *lfs, int acknowledged) {
    bool old[STEPS] = {holds(lfs, "settings", settings_old, nothing), holds(lfs, "log", log_old, nothing),
                       holds(lfs, "firmware", firmware_old, nothing)};
    bool new[STEPS] = {holds(lfs, "settings", settings_new, nothing), holds(lfs, "log", log_old, log_more),
                       holds(lfs, "firmware", firmware_new, nothing)};
    int done = 0;
    for (int step = 0; step < STEPS; step++) {
        CHECK(old[step] || new[step]);
        CHECK(new[step] || step >= acknowledged);
        CHECK(old[step] || step <= acknowledged);
        done += new[step];
    }
    /* The file is created empty, and written as a whole. */
    if (exists(lfs, "firmware.new")) {
        CHECK(!new[2]);
        CHECK(holds(lfs, "firmware.new", nothing, nothing) || holds(lfs, "firmware.new", firmware_new, nothing));
    }
    return done;
}

static void switch_on(spinor_chip *chip) {
    CHECK(spinor_set_faults(chip, NULL) == SPINOR_OK);
    spinor_power(chip, false);
    spinor_power(chip, true);
    spinor_advance(chip, 10000000);
}

/* Cuts by the number of acknowledged steps, and outcomes of the step after them. */
static long by_acknowledged[STEPS + 1], found_old, found_new;

/* Changes the files, cuts the power at a byte, switches the chip on again and checks the files. Returns whether the byte was reached. */
static bool survives_cut(spinor_chip *chip, const struct lfs_config *config, const uint8_t *begun, long cut) {
    static const uint8_t write_enable = 0x06, chip_erase = 0xC7;
    spinor_faults faults = spinor_no_faults();
    faults.cut_bus_byte = cut;
    lfs_t lfs;
    /* Erased cells are stable, whatever the cut before has left. */
    CHECK(spinor_transact(chip, &write_enable, 1, NULL, 0) == SPINOR_OK && spinor_transact(chip, &chip_erase, 1, NULL, 0) == SPINOR_OK);
    spinor_advance(chip, spinor_busy_for(chip));
    CHECK(spinor_load(chip, begun, spinor_size(chip)) == SPINOR_OK);
    CHECK(spinor_set_faults(chip, &faults) == SPINOR_OK);
    int acknowledged = 0;
    if (lfs_mount(&lfs, config) == 0) {
        /* A program without power sees no answer. The power is asked because littlefs 2.9 returns 0 for some reads that failed
         * (lfs_dir_fetchmatch goes on after an error where it reads an FCRC tag). */
        while (acknowledged < STEPS && change(&lfs, acknowledged) && spinor_get_state(chip) != SPINOR_POWER_DOWN) acknowledged++;
        lfs_unmount(&lfs);
    }
    bool is_cut = spinor_get_state(chip) == SPINOR_POWER_DOWN;
    CHECK(is_cut || acknowledged == STEPS);
    switch_on(chip);
    CHECK(lfs_mount(&lfs, config) == 0);
    int done = judge(&lfs, acknowledged);
    by_acknowledged[acknowledged]++;
    if (acknowledged < STEPS && done == acknowledged) found_old++;
    if (acknowledged < STEPS && done > acknowledged) found_new++;
    /* The file system goes on, and the other files stay. */
    CHECK(store(&lfs, "later", LFS_O_TRUNC, later) && lfs_unmount(&lfs) == 0 && lfs_mount(&lfs, config) == 0);
    CHECK(holds(&lfs, "later", later, nothing) && judge(&lfs, acknowledged) == done && lfs_unmount(&lfs) == 0);
    return is_cut;
}

static spinor_chip *open_chip(const char *path) {
    static char text[100000], error[200];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    spinor_chip *chip = spinor_open_toml(text, 1, error, sizeof error);
    if (chip == NULL) fprintf(stderr, "%s\n", error);
    return chip;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    spinor_chip *chip = open_chip(arguments[1]);
    spinor_geometry geometry;
    CHECK(spinor_get_geometry(chip, &geometry) == SPINOR_OK);
    struct lfs_config config = {
        .context = chip, .read = flash_read, .prog = flash_prog, .erase = flash_erase, .sync = flash_sync,
        .read_size = 16, .prog_size = 16, .block_size = geometry.block_size, .block_count = geometry.block_count,
        .cache_size = 128, .lookahead_size = 16, .block_cycles = 500,
    };
    lfs_t lfs;
    CHECK(lfs_format(&lfs, &config) == 0 && lfs_mount(&lfs, &config) == 0);
    prepare(&lfs);
    CHECK(lfs_unmount(&lfs) == 0);
    uint8_t *begun = malloc(spinor_size(chip));
    CHECK(begun != NULL);
    memcpy(begun, spinor_memory(chip), spinor_size(chip));

    long cuts = 0;
    do snprintf(subject, sizeof subject, "cut at byte %ld", cuts);
    while (survives_cut(chip, &config, begun, cuts) && ++cuts);
    free(begun);
    spinor_close(chip);

    strcpy(subject, "cuts before, between and after the steps");
    for (int step = 0; step <= STEPS; step++) CHECK(by_acknowledged[step] > 0);
    CHECK(found_old > 0 && found_new > 0);
    printf("ok: %ld cuts; in the step that the power ended, the old file %ld times and the new one %ld times\n", cuts, found_old, found_new);
    return 0;
}
