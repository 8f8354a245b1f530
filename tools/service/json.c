// json.c: what the service needs beside cJSON.
//
// In: JSON of a client, of any form. Out: its members, where they have the type that is asked for.
#include "internal.h"

#include <ctype.h>
#include <string.h>

const cJSON *json_get(const cJSON *object, const char *path) {
    char name[64];
    while (object && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof name) return NULL;
        memcpy(name, path, n);
        name[n] = '\0';
        object = cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
        path += n + (path[n] == '.');
    }
    return object;
}

const char *json_string(const cJSON *object, const char *path) {
    return cJSON_GetStringValue(json_get(object, path));
}

bool json_true(const cJSON *object, const char *path) {
    return cJSON_IsTrue(json_get(object, path));
}

bool json_lists(const cJSON *array, const char *word) {
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        if (cJSON_IsString(item) && !strcmp(item->valuestring, word)) return true;
    }
    return false;
}

bool json_index(const cJSON *object, const char *path, uint32_t *value) {
    const cJSON *item = json_get(object, path);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0)) return false;
    *value = item->valuedouble < UINT32_MAX ? (uint32_t)item->valuedouble : UINT32_MAX;
    return true;
}

cJSON *json_pair(const char *a, cJSON *x, const char *b, cJSON *y) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, a, x);
    cJSON_AddItemToObject(o, b, y);
    return o;
}

// The value of \uXXXX at s, or -1.
static int escape_at(const char *s, const char *end) {
    int v = 0;
    if (end - s < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        int c = tolower((unsigned char)s[i]);
        if (!isxdigit(c)) return -1;
        v = v * 16 + (isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return v;
}

static bool is_high(int unit) { return unit >= 0xd800 && unit < 0xdc00; }
static bool is_low(int unit) { return unit >= 0xdc00 && unit < 0xe000; }

void json_mend(char *json, size_t n) {
    char *end = json + n;
    for (char *p = json; p < end && (p = memchr(p, '\\', (size_t)(end - p)));) {
        int unit = escape_at(p, end);
        if (unit < 0) {
            p += 2; // another escape: what follows the backslash begins none
            continue;
        }
        bool pair = is_high(unit) && is_low(escape_at(p + 6, end));
        if (!pair && (unit == 0 || is_high(unit) || is_low(unit))) memcpy(p, "\\ufffd", 6);
        p += pair ? 12 : 6;
    }
}
