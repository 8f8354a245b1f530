// status.h: exit statuses of the command, as the language's contract fixes them, and how it speaks
// of its own errors. Diagnostics about a source file are not made here: they are the Diags of a
// compilation (ir/diag.h).
#ifndef TOOLS_STATUS_H
#define TOOLS_STATUS_H

typedef enum Status {
    STATUS_DONE = 0,
    STATUS_INPUT =
        1, // the input was wrong: source, shapes, a failed check, what a target does not support
    STATUS_USAGE = 2, // the command line was wrong
    STATUS_SYSTEM =
        3, // the device or the system failed: no device, a file that cannot be opened or written
} Status;

// Prints `attnc: error: ...` to stderr and gives the status back, so that a caller can write
// `return cmd_fail(...)`.
Status cmd_fail(Status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cmd_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
