/* An HTTP/1.1 response taken apart as its bytes come, whatever they are cut into: status, the headers that frame it, and the
   lines of its body. A line of the body may begin in one chunk and end in the next. */

#ifndef HTTP_ANSWER_H
#define HTTP_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE_BYTES = 1 << 16, CHUNK_LINE_BYTES = 64 };

typedef enum {
    STATUS_LINE, HEADERS, BODY_TO_EOF, BODY_OF_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILERS, COMPLETE
} AnswerPart;

/* num_left: bytes of the chunk or of the body, -1 where no length was given. closes: the connection cannot be kept.
   Longer lines are cut. on_line gets each line of the body that is not empty. */
typedef struct {
    AnswerPart part;
    int status;
    bool is_chunked, closes;
    long long num_left;
    char line[LINE_BYTES], chunk_line[CHUNK_LINE_BYTES];
    size_t line_size, chunk_line_size;
    void (*on_line)(void *owner, const char *line);
    void *owner;
} Answer;

static void answer_begin(Answer *answer) {
    answer->part = STATUS_LINE;
    answer->status = 0;
    answer->is_chunked = answer->closes = false;
    answer->num_left = -1;
    answer->line_size = answer->chunk_line_size = 0;
}

/* Not a byte of it has come. */
static bool answer_is_untouched(const Answer *answer) { return answer->part == STATUS_LINE && !answer->line_size; }

/* True when `answer->line` holds a whole line, without its end; the caller empties it. */
static bool take_line(Answer *answer, const char **bytes, size_t *size) {
    const char *newline = memchr(*bytes, '\n', *size);
    size_t taken = newline ? (size_t)(newline - *bytes) : *size;
    size_t room = LINE_BYTES - 1 - answer->line_size;
    size_t kept = taken < room ? taken : room;
    memcpy(answer->line + answer->line_size, *bytes, kept);
    answer->line_size += kept;
    *bytes += taken + (newline != NULL);
    *size -= taken + (newline != NULL);
    if (!newline) return false;
    if (answer->line_size && answer->line[answer->line_size - 1] == '\r') answer->line_size--;
    answer->line[answer->line_size] = 0;
    return true;
}

/* True when `answer->chunk_line` holds a whole line. */
static bool take_chunk_line(Answer *answer, const char **bytes, size_t *size) {
    while (*size) {
        char byte = *(*bytes)++;
        (*size)--;
        if (byte == '\n') {
            answer->chunk_line[answer->chunk_line_size] = 0;
            answer->chunk_line_size = 0;
            return true;
        }
        if (byte != '\r' && answer->chunk_line_size < CHUNK_LINE_BYTES - 1)
            answer->chunk_line[answer->chunk_line_size++] = byte;
    }
    return false;
}

static void take_body(Answer *answer, const char *bytes, size_t size) {
    while (size)
        if (take_line(answer, &bytes, &size)) {
            if (answer->line_size) answer->on_line(answer->owner, answer->line);
            answer->line_size = 0;
        }
}

static bool header_says(const char *line, const char *name, const char *word) {
    size_t size = strlen(name);
    if (strncasecmp(line, name, size) || line[size] != ':') return false;
    for (line += size + 1; *line; line++)
        if (!strncasecmp(line, word, strlen(word))) return true;
    return false;
}

static void take_header(Answer *answer, const char *line) {
    if (header_says(line, "transfer-encoding", "chunked")) answer->is_chunked = true;
    if (header_says(line, "connection", "close")) answer->closes = true;
    if (header_says(line, "content-length", "")) answer->num_left = atoll(strchr(line, ':') + 1);
}

static AnswerPart body_part(Answer *answer) {
    if (answer->is_chunked) return CHUNK_SIZE;
    if (answer->num_left == 0) return COMPLETE;
    if (answer->num_left > 0) return BODY_OF_LENGTH;
    answer->closes = true;
    return BODY_TO_EOF;
}

/* A last line of the body that no newline ended. */
static void finish_line(Answer *answer) {
    if (!answer->line_size) return;
    answer->line[answer->line_size] = 0;
    answer->line_size = 0;
    answer->on_line(answer->owner, answer->line);
}

/* Takes bytes up to the end of the response, where `part` becomes COMPLETE; bytes behind it are dropped. */
static void answer_take(Answer *answer, const char *bytes, size_t size) {
    while (size && answer->part != COMPLETE) {
        switch (answer->part) {
        case STATUS_LINE:
            if (!take_line(answer, &bytes, &size)) break;
            answer->status = answer->line_size > 9 ? atoi(answer->line + 9) : 0;
            answer->line_size = 0;
            answer->part = HEADERS;
            break;
        case HEADERS:
            if (!take_line(answer, &bytes, &size)) break;
            if (answer->line_size) take_header(answer, answer->line);
            else answer->part = body_part(answer);
            answer->line_size = 0;
            break;
        case CHUNK_SIZE:
            if (!take_chunk_line(answer, &bytes, &size)) break;
            answer->num_left = strtoll(answer->chunk_line, NULL, 16);
            answer->part = answer->num_left > 0 ? CHUNK_DATA : TRAILERS;
            break;
        case CHUNK_END:
            if (take_chunk_line(answer, &bytes, &size)) answer->part = CHUNK_SIZE;
            break;
        case TRAILERS:
            if (take_chunk_line(answer, &bytes, &size) && !answer->chunk_line[0]) answer->part = COMPLETE;
            break;
        case BODY_TO_EOF:
            take_body(answer, bytes, size);
            size = 0;
            break;
        default: { /* BODY_OF_LENGTH, CHUNK_DATA */
            size_t taken = (long long)size < answer->num_left ? size : (size_t)answer->num_left;
            take_body(answer, bytes, taken);
            bytes += taken;
            size -= taken;
            answer->num_left -= (long long)taken;
            if (!answer->num_left) answer->part = answer->part == CHUNK_DATA ? CHUNK_END : COMPLETE;
        }
        }
    }
    if (answer->part == COMPLETE) finish_line(answer);
}

/* The connection has ended; false when that cut the response short. */
static bool answer_end(Answer *answer) {
    if (answer->part != BODY_TO_EOF) return false;
    answer->part = COMPLETE;
    finish_line(answer);
    return true;
}

#endif
