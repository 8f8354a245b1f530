// format.h: what the parts of the formatter share: the source as tokens with the comments between
// them (format_comments.c), and the lines to be laid out (format_layout.c). Private to format.c and
// these.
#ifndef FRONTEND_FORMAT_H
#define FRONTEND_FORMAT_H

#include "frontend/ast.h"

// Comments on one line of the source. Of those between the same two tokens only the first may
// follow code on its line, and only the last may stand before code.
typedef struct Remark {
    const char *s; // without blanks at the end of its lines
    bool before;   // a line ends before it
    bool after;    // a line ends after it
    bool blank;    // an empty line stands before it
    bool below;    // it goes on under the remark before it, in the same column
} Remark;
typedef VEC(Remark) Remarks;

typedef struct Word { // a token
    const char *s;
    uint32_t n, start;
    bool blank;      // an empty line stands before it
    Remarks remarks; // between the token before it and this one
} Word;
typedef VEC(Word) Words;

// The last word is the end of the file: it is empty.
Words format_words(Arena *a, const char *text, const AstTokens *tokens);
// What stands in `more` comes after `list`, with nothing but blanks between them.
void format_add_remarks(Arena *a, Remarks *list, const Remarks *more);

typedef enum PieceKind {
    PIECE_TEXT,
    PIECE_LINE,   // the end of a line where its group is broken, else n blanks
    PIECE_END,    // the end of a line
    PIECE_REMARK, // a comment after code; an END or LINE follows
    PIECE_OPEN,
    PIECE_CLOSE // of a group: on one line, or all its LINEs end one
} PieceKind;

typedef struct Piece {
    PieceKind kind;
    int indent; // LINE, END: columns of the next line, within the statement
    uint32_t n;
    const char *s; // TEXT, REMARK
} Piece;

typedef enum Alignment { ALIGN_NONE, ALIGN_CONST, ALIGN_CLAUSE } Alignment;

// A statement, or its part up to `{`, or a `}`, or a remark that stands alone.
typedef struct Row {
    int depth;          // of braces
    int first, n;       // of the pieces; n is 0 for a remark
    int equals;         // the piece that aligns with those of neighbouring rows
    Alignment align;    // of rows with the same one
    const char *trail;  // a remark after it; where n is 0: the remark itself
    bool below;         // where n is 0: it goes on under the remark above
    bool blank;         // an empty line stands before it
    bool opens, closes; // braces
    bool item, large;   // it begins an item of the module; one that has braces
} Row;

typedef struct Layout {
    Arena *arena;
    VEC(Piece) pieces;
    VEC(Row) rows;
} Layout;

void format_layout(Layout *l, Text *out);

#endif
