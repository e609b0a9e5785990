/* A load generator for OpenAI servers that costs little beside them: one thread, epoll, S streams at a time.

     sse_load HOST PORT BODIES STREAMS REQUESTS [DURATION_S [TIMEOUT_S]]

   BODIES is a file with one JSON body a line; requests take them in turn, from the first again after the last. Each stream
   makes REQUESTS requests one after the other, or, where DURATION_S is over 0, as many as it begins in that time. A request
   that fails ends its stream. Connections are open before the clock starts and are kept where the server keeps them.

   One JSON object goes to stdout: {"wall_s", "cpu_s", "requests": [{"stream", "status", "start_us", "ttft_us", "end_us",
   "gaps_us", "num_events", "completion_tokens", "prompt_tokens", "is_done", "error"}]}. Times are microseconds since the clock
   started. An event is a `data:` line with at least one choice; ttft_us is from the start of the request to its first event,
   gaps_us are between one event and the next, both taken when the bytes are read. Token counts are the server's own `usage`,
   -1 where it sends none. Exit status: 0 whenever it could run at all; failures are in "error". */

#define _POSIX_C_SOURCE 200809L
#include "http_answer.h"
#include "sse_event.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ERROR_BYTES = 256, READ_BYTES = 1 << 16, HEAD_BYTES = 512, MAX_STREAMS = 4096 };

typedef struct {
    int stream, status, num_events;
    long long start_us, ttft_us, end_us, last_event_us;
    int *gaps_us;
    size_t num_gaps, max_gaps;
    long completion_tokens, prompt_tokens;
    bool is_done;
    char error[ERROR_BYTES];
} Record;

typedef struct {
    int index, fd, num_begun;
    bool is_ended, is_reused;
    char *out;
    size_t out_size, out_sent, record;
    long long last_byte_us;
    Answer answer;
} Stream;

static struct sockaddr_in address;
static const char *host;
static int port, epoll_fd, num_requests, num_live;
static double duration_s, timeout_s = 120;
static char **bodies;
static size_t num_bodies, next_body;
static Record *records;
static size_t num_records, max_records;
static struct timespec clock_start;
static long long end_us;

static void die(const char *what) {
    fprintf(stderr, "sse_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *must(void *memory) {
    if (!memory) die("memory");
    return memory;
}

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)(now.tv_sec - clock_start.tv_sec) * 1000000 + (now.tv_nsec - clock_start.tv_nsec) / 1000;
}

static void read_bodies(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    while ((size = getline(&line, &room, file)) > 0) {
        if (line[size - 1] == '\n') line[size - 1] = 0;
        if (!line[0]) continue;
        bodies = must(realloc(bodies, (num_bodies + 1) * sizeof *bodies));
        bodies[num_bodies++] = must(strdup(line));
    }
    free(line);
    fclose(file);
    if (!num_bodies) {
        fprintf(stderr, "sse_load: %s holds no body\n", path);
        exit(1);
    }
}

static void watch(Stream *stream, bool for_writing) {
    struct epoll_event event = {.events = EPOLLIN | (for_writing ? EPOLLOUT : 0), .data.ptr = stream};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, stream->fd, &event) < 0 &&
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, stream->fd, &event) < 0)
        die("epoll_ctl");
}

static void disconnect(Stream *stream) {
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = -1;
}

/* Blocking, which a local listener makes short; a refused connection returns false. */
static bool open_connection(Stream *stream) {
    stream->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (stream->fd < 0) die("socket");
    if (connect(stream->fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int cause = errno;
        disconnect(stream);
        errno = cause;
        return false;
    }
    int one = 1;
    setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    stream->is_reused = false;
    return true;
}

static void next_request(Stream *stream);

static void end_request(Stream *stream, const char *format, ...) {
    Record *record = &records[stream->record];
    record->end_us = end_us = now_us();
    record->status = stream->answer.status;
    if (format && !record->error[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(record->error, sizeof record->error, format, arguments);
        va_end(arguments);
    }
    if (record->error[0] || stream->answer.closes) disconnect(stream);
    if (record->error[0]) {
        stream->is_ended = true;
        num_live--;
        return;
    }
    stream->is_reused = true;
    next_request(stream);
}

static void send_rest(Stream *stream) {
    while (stream->out_sent < stream->out_size) {
        ssize_t sent = send(stream->fd, stream->out + stream->out_sent, stream->out_size - stream->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (sent < 0) {
            end_request(stream, "sending: %s", strerror(errno));
            return;
        }
        stream->out_sent += (size_t)sent;
    }
    watch(stream, stream->out_sent < stream->out_size);
}

static void next_request(Stream *stream) {
    bool is_over = duration_s > 0 ? now_us() >= duration_s * 1e6 : stream->num_begun >= num_requests;
    if (is_over) {
        disconnect(stream);
        stream->is_ended = true;
        num_live--;
        return;
    }
    if (num_records == max_records) {
        max_records = max_records ? 2 * max_records : 256;
        records = must(realloc(records, max_records * sizeof *records));
    }
    stream->num_begun++;
    stream->record = num_records++;
    records[stream->record] = (Record){
        .stream = stream->index, .start_us = now_us(), .ttft_us = -1, .completion_tokens = -1, .prompt_tokens = -1};
    answer_begin(&stream->answer);
    stream->last_byte_us = now_us();
    const char *body = bodies[next_body++ % num_bodies];
    size_t body_size = strlen(body);
    stream->out = must(realloc(stream->out, HEAD_BYTES + body_size));
    int head_size = snprintf(stream->out, HEAD_BYTES,
                             "POST /v1/completions HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                             "Accept: text/event-stream\r\nContent-Length: %zu\r\n\r\n",
                             host, port, body_size);
    memcpy(stream->out + head_size, body, body_size);
    stream->out_size = (size_t)head_size + body_size;
    stream->out_sent = 0;
    if (stream->fd < 0 && !open_connection(stream)) {
        end_request(stream, "connecting: %s", strerror(errno));
        return;
    }
    send_rest(stream);
}

static void on_event(Record *record, long long now) {
    record->num_events++;
    if (record->ttft_us < 0) {
        record->ttft_us = now - record->start_us;
    } else {
        if (record->num_gaps == record->max_gaps) {
            record->max_gaps = record->max_gaps ? 2 * record->max_gaps : 64;
            record->gaps_us = must(realloc(record->gaps_us, record->max_gaps * sizeof *record->gaps_us));
        }
        record->gaps_us[record->num_gaps++] = (int)(now - record->last_event_us);
    }
    record->last_event_us = now;
}

/* Of an answer that is no stream the first line stands for the error. */
static void on_line(void *owner, const char *line) {
    Stream *stream = owner;
    Record *record = &records[stream->record];
    if (stream->answer.status != 200) {
        if (!record->error[0]) snprintf(record->error, ERROR_BYTES, "status %d: %s", stream->answer.status, line);
        return;
    }
    if (strncmp(line, "data:", 5)) return;
    Event event = read_event(line + 5);
    if (event.has_usage) {
        record->completion_tokens = event.completion_tokens;
        record->prompt_tokens = event.prompt_tokens;
    }
    if (event.kind == EVENT_CHOICE) on_event(record, stream->last_byte_us);
    else if (event.kind == EVENT_DONE) record->is_done = true;
    else if (event.kind == EVENT_ERROR && !record->error[0]) snprintf(record->error, ERROR_BYTES, "%s", line);
}

static void on_complete(Stream *stream) {
    if (stream->answer.status != 200) end_request(stream, "status %d", stream->answer.status);
    else if (!records[stream->record].is_done) end_request(stream, "the stream ended without [DONE]");
    else end_request(stream, NULL);
}

/* A server may close a kept connection in the moment it is used again; that request was never read and is sent anew. */
static void on_close(Stream *stream, const char *why) {
    if (answer_end(&stream->answer)) {
        on_complete(stream);
    } else if (stream->is_reused && answer_is_untouched(&stream->answer)) {
        disconnect(stream);
        stream->out_sent = 0;
        if (open_connection(stream)) send_rest(stream);
        else end_request(stream, "connecting again: %s", strerror(errno));
    } else {
        end_request(stream, "the connection ended: %s", why);
    }
}

static void on_readable(Stream *stream) {
    static char buffer[READ_BYTES];
    while (true) {
        ssize_t size = recv(stream->fd, buffer, sizeof buffer, 0);
        if (size > 0) {
            stream->last_byte_us = now_us();
            answer_take(&stream->answer, buffer, (size_t)size);
            if (stream->answer.part == COMPLETE) {
                on_complete(stream);
                return;
            }
            if (size < (ssize_t)sizeof buffer) return;
        } else if (size == 0) {
            on_close(stream, "closed by the server");
            return;
        } else if (errno != EINTR) {
            if (errno != EAGAIN) on_close(stream, strerror(errno));
            return;
        }
    }
}

static void run(Stream *streams, int num_streams) {
    struct epoll_event events[256];
    for (int i = 0; i < num_streams; i++)
        if (!streams[i].is_ended) next_request(&streams[i]);
    while (num_live) {
        int count = epoll_wait(epoll_fd, events, 256, 1000);
        if (count < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < count; i++) {
            Stream *stream = events[i].data.ptr;
            if (stream->is_ended) continue;
            if (events[i].events & EPOLLOUT) send_rest(stream);
            if (!stream->is_ended && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(stream);
        }
        if (count > 0) continue;
        for (int i = 0; i < num_streams; i++)
            if (!streams[i].is_ended && now_us() - streams[i].last_byte_us > timeout_s * 1e6)
                end_request(&streams[i], "no byte in %g s", timeout_s);
    }
}

static void print_string(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') printf("\\%c", byte);
        else if (byte < 0x20 || byte > 0x7e) printf("\\u%04x", byte);
        else putchar(byte);
    }
    putchar('"');
}

static void print_report(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    printf("{\"wall_s\":%.6f,\"cpu_s\":%.6f,\"requests\":[", (double)end_us * 1e-6, cpu_s);
    for (size_t i = 0; i < num_records; i++) {
        Record *record = &records[i];
        printf("%s\n{\"stream\":%d,\"status\":%d,\"start_us\":%lld,\"ttft_us\":%lld,\"end_us\":%lld,\"num_events\":%d,"
               "\"completion_tokens\":%ld,\"prompt_tokens\":%ld,\"is_done\":%s,\"error\":",
               i ? "," : "", record->stream, record->status, record->start_us, record->ttft_us, record->end_us,
               record->num_events, record->completion_tokens, record->prompt_tokens, record->is_done ? "true" : "false");
        print_string(record->error);
        printf(",\"gaps_us\":[");
        for (size_t k = 0; k < record->num_gaps; k++) printf("%s%d", k ? "," : "", record->gaps_us[k]);
        printf("]}");
    }
    printf("]}\n");
}

int main(int count, char **arguments) {
    if (count < 6 || count > 8) {
        fprintf(stderr, "usage: sse_load HOST PORT BODIES STREAMS REQUESTS [DURATION_S [TIMEOUT_S]]\n");
        return 2;
    }
    host = arguments[1];
    port = atoi(arguments[2]);
    int num_streams = atoi(arguments[4]);
    num_requests = atoi(arguments[5]);
    if (count > 6) duration_s = atof(arguments[6]);
    if (count > 7) timeout_s = atof(arguments[7]);
    if (num_streams < 1 || num_streams > MAX_STREAMS || (num_requests < 1 && duration_s <= 0)) {
        fprintf(stderr, "sse_load: 1 to %d streams, and requests or a duration\n", MAX_STREAMS);
        return 2;
    }
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fprintf(stderr, "sse_load: HOST is an IPv4 address\n");
        return 2;
    }
    read_bodies(arguments[3]);
    epoll_fd = epoll_create1(0);
    if (epoll_fd < 0) die("epoll_create1");
    Stream *streams = must(calloc((size_t)num_streams, sizeof *streams));
    num_live = num_streams;
    for (int i = 0; i < num_streams; i++) {
        streams[i].index = i;
        streams[i].fd = -1;
        streams[i].answer.on_line = on_line;
        streams[i].answer.owner = &streams[i];
        open_connection(&streams[i]); /* where it fails, the request says so */
    }
    clock_gettime(CLOCK_MONOTONIC, &clock_start);
    run(streams, num_streams);
    print_report();
    return 0;
}
