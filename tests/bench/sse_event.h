/* What one `data:` line of an OpenAI stream says, without a JSON parser: a key is found by its quotes, which inside a string
   would have backslashes before them. */

#ifndef SSE_EVENT_H
#define SSE_EVENT_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef enum { EVENT_OTHER, EVENT_CHOICE, EVENT_ERROR, EVENT_DONE } EventKind;

/* has_usage: the server's own counts are there; prompt_tokens is -1 where it left that one out. */
typedef struct {
    EventKind kind;
    bool has_usage;
    long completion_tokens, prompt_tokens;
} Event;

/* Where the value of an unescaped key begins, or NULL. */
static const char *value_of(const char *json, const char *quoted_key) {
    const char *found = strstr(json, quoted_key);
    if (!found) return NULL;
    found += strlen(quoted_key);
    while (*found == ' ') found++;
    if (*found != ':') return NULL;
    do found++;
    while (*found == ' ');
    return found;
}

static bool has_choice(const char *json) {
    const char *choices = value_of(json, "\"choices\"");
    if (!choices || *choices != '[') return false;
    do choices++;
    while (*choices == ' ');
    return *choices == '{';
}

/* `data`: what stands behind "data:". A choice wins over an error, which servers may write as null beside it. */
static Event read_event(const char *data) {
    Event event = {.kind = EVENT_OTHER, .completion_tokens = -1, .prompt_tokens = -1};
    while (*data == ' ') data++;
    if (!strncmp(data, "[DONE]", 6)) {
        event.kind = EVENT_DONE;
        return event;
    }
    const char *completion_tokens = value_of(data, "\"completion_tokens\"");
    if (completion_tokens) {
        const char *prompt_tokens = value_of(data, "\"prompt_tokens\"");
        event.has_usage = true;
        event.completion_tokens = strtol(completion_tokens, NULL, 10);
        event.prompt_tokens = prompt_tokens ? strtol(prompt_tokens, NULL, 10) : -1;
    }
    const char *error = value_of(data, "\"error\"");
    if (has_choice(data)) event.kind = EVENT_CHOICE;
    else if (error && strncmp(error, "null", 4)) event.kind = EVENT_ERROR;
    return event;
}

#endif
