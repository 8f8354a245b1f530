// gram.y: tokens to an AST, by the grammar of docs/language.md. Mistakes are reported and skipped to the next `;` or `}`.
%code requires {
#include "frontend/parse.h"
}
%code provides {
int ast_yylex(AST_YYSTYPE *value, Span *span, void *scanner);
}
%code {
#include "frontend/names.h"
#include <string.h>

// A level of nesting takes at most about 26 entries (each binary precedence, a condition, a call), so the limit of 256 levels
// is met long before this; what still fills the stack is nested deeper than allowed, and yyerror says so.
#undef YYMAXDEPTH
#define YYMAXDEPTH 20000
#define YYLLOC_DEFAULT(cur, rhs, n)                                                                \
    ((cur) = (n) ? (Span){YYRHSLOC(rhs, 1).file, YYRHSLOC(rhs, 1).start, YYRHSLOC(rhs, n).end}       \
                 : (Span){YYRHSLOC(rhs, 0).file, YYRHSLOC(rhs, 0).end, YYRHSLOC(rhs, 0).end})

static void ast_yyerror(const Span *at, void *scanner, Parse *p, const char *message);

// The tree that one operator makes, or the end of the parse where it nests too deep.
#define UNARY(result, op, at, a)                                                                   \
    do {                                                                                           \
        (result) = parse_operator(p, op, at, at, a, NULL);                                         \
        if (!parse_nest(p, result, at)) YYABORT;                                                   \
    } while (0)
#define NEST(e, at)                                                                                \
    do {                                                                                           \
        if (!parse_nest(p, e, at)) YYABORT;                                                        \
    } while (0)
// The next mistake is worth a report of its own once the text is back at the braces where this rule stands: after a broken
// `attention {` the clauses that follow are skipped in silence.
#define RECOVERED(depth)                                                                           \
    do {                                                                                           \
        if (p->braces <= (depth)) yyerrok;                                                         \
    } while (0)
}

%define api.pure full
%define api.prefix {ast_yy}
%define parse.error custom
%define parse.lac full
%locations
%define api.location.type {Span}
%expect 0
%parse-param {void *scanner} {Parse *p}
%lex-param {void *scanner}
%initial-action { @$ = (Span){p->file, 0, 0}; }

%union {
    AstExpr *expr;
    AstExprs exprs;
    AstName name;
    AstNames names;
    AstBody body;
    AstLet let;
    AstLets lets;
    AstExtent extent;
    AstExtents extents;
    AstItem *item;
    AstItems items;
}

%token IMPORT "'import'" CONST "'const'" FN "'fn'" NORMALIZATION "'normalization'" ATTENTION "'attention'"
%token RECURRENCE "'recurrence'" DIM "'dim'" INPUT "'input'" LET "'let'" EMIT "'emit'" RETURN "'return'"
%token NAME "a name" SHARE "'share'" INT "an integer" FLOAT "a number"
%token OROR "'||'" ANDAND "'&&'" EQEQ "'=='" NOTEQ "'!='" LESSEQ "'<='" GREATEREQ "'>='" SHIFTL "'<<'" SHIFTR "'>>'"

%right '?' ':'
%left OROR
%left ANDAND
%left '|'
%left '^'
%left '&'
%left EQEQ NOTEQ
%left '<' LESSEQ '>' GREATEREQ
%left SHIFTL SHIFTR
%left '+' '-'
%left '*' '/' '%'
%precedence '!' '~' UNARY

%type <expr> expr primary value bound
%type <exprs> args args_opt slice
%type <name> name path word grad
%type <names> params names
%type <body> body
%type <let> let
%type <lets> lets
%type <extent> extent
%type <extents> extents extents_opt
%type <item> item variant_item dim
%type <items> variant_items dims

%%

module:
  %empty
| module item                       { if ($2) VEC_PUSH(p->arena, &p->module->items, $2); }
;

item:
  IMPORT path ';'                   { $$ = parse_item(p, AST_IMPORT, @$, $2); }
| CONST name value ';'              { $$ = parse_item(p, AST_CONST, @$, $2); $$->value = $3; $$->broken = !$3; if (!$3) RECOVERED(0); }
| FN name params body               { $$ = parse_item(p, AST_FN, @$, $2); $$->params = $3; $$->body = $4; }
| NORMALIZATION name params body    { $$ = parse_item(p, AST_NORMALIZATION, @$, $2); $$->params = $3; $$->body = $4; }
| FN name error end                 { $$ = parse_broken(p, AST_FN, @$, $2); RECOVERED(0); }
| NORMALIZATION name error end      { $$ = parse_broken(p, AST_NORMALIZATION, @$, $2); RECOVERED(0); }
| ATTENTION name '{' variant_items '}'   { $$ = parse_variant(p, AST_ATTENTION, @$, $2, $4); }
| RECURRENCE name '{' variant_items '}'  { $$ = parse_variant(p, AST_RECURRENCE, @$, $2, $4); }
| error ';'                         { $$ = NULL; RECOVERED(0); }
| error '}'                         { $$ = NULL; RECOVERED(0); }
;

// A broken value keeps the name that it was for: what uses it is no mistake of its own.
value:
  '=' expr                          { $$ = $2; }
| error                             { $$ = NULL; }
;

end: ';' | '}' ;

path:
  word
| path '.' word                     { $$ = $1; $$.s = arena_printf(p->arena, "%s.%s", $1.s, $3.s); $$.span.end = $3.span.end; }
;

word:
  name
| reserved                          { $$ = parse_name(p, @1); }
;

reserved: IMPORT | CONST | FN | NORMALIZATION | ATTENTION | RECURRENCE | DIM | INPUT | LET | EMIT | RETURN ;

// `share` begins a declaration of an attention; elsewhere it is a name.
name:
  NAME                              { $$ = parse_name(p, @1); }
| SHARE                             { $$ = parse_name(p, @1); }
;

params:
  '(' ')'                           { $$ = (AstNames){0}; }
| '(' names ')'                     { $$ = $2; }
;

names:
  name                              { $$ = (AstNames){0}; VEC_PUSH(p->arena, &$$, $1); }
| names ',' name                    { $$ = $1; VEC_PUSH(p->arena, &$$, $3); }
;

body:
  '=' expr ';'                      { $$ = (AstBody){.result = $2}; }
| '{' lets RETURN expr ';' '}'      { $$ = (AstBody){.block = true, .lets = $2, .result = $4}; }
| '{' lets error '}'                { $$ = (AstBody){.block = true, .lets = $2}; RECOVERED(1); }
;

lets:
  %empty                            { $$ = (AstLets){0}; }
| lets let                          { $$ = $1; if ($2.name.s) VEC_PUSH(p->arena, &$$, $2); }
;

let:
  LET name value ';'                { $$ = (AstLet){false, $2, $3}; if (!$3) RECOVERED(2); }
| EMIT name value ';'               { $$ = (AstLet){true, $2, $3}; if (!$3) RECOVERED(2); }
| error ';'                         { $$ = (AstLet){0}; RECOVERED(2); }
;

variant_items:
  %empty                            { $$ = (AstItems){0}; }
| variant_items variant_item        { $$ = $1; VEC_PUSH(p->arena, &$$, $2); }
| variant_items DIM dims ';'        { $$ = $1; for (int i = 0; i < $3.n; i++) VEC_PUSH(p->arena, &$$, $3.data[i]); yyerrok; }
;

variant_item:
  INPUT name ':' name extents_opt grad ';' {
      $$ = parse_item(p, AST_INPUT, @$, $2);
      $$->type = $4;
      $$->extents = $5;
      $$->grad = $6;
  }
| SHARE name '=' name ';'           { $$ = parse_item(p, AST_SHARE, @$, $2); $$->of = $4; }
| name params body                  { $$ = parse_item(p, AST_CLAUSE, @$, $1); $$->params = $2; $$->body = $3; }
| INPUT name error ';'              { $$ = parse_broken(p, AST_INPUT, @$, $2); RECOVERED(1); }
| name error ';'                    { $$ = parse_broken(p, AST_CLAUSE, @$, $1); RECOVERED(1); }
| error ';'                         { $$ = parse_broken(p, AST_CLAUSE, @$, (AstName){"", @$}); RECOVERED(1); }
;

dims:
  dim                               { $$ = (AstItems){0}; VEC_PUSH(p->arena, &$$, $1); }
| dims ',' dim                      { $$ = $1; VEC_PUSH(p->arena, &$$, $3); }
;

dim:
  name value                        { $$ = parse_item(p, AST_DIM, @$, $1); $$->value = $2; $$->broken = !$2; }
;

extents_opt:
  %empty                            { $$ = (AstExtents){0}; }
| '[' extents ']'                   { $$ = $2; }
;

extents:
  extent                            { $$ = (AstExtents){0}; VEC_PUSH(p->arena, &$$, $1); }
| extents ',' extent                { $$ = $1; VEC_PUSH(p->arena, &$$, $3); }
;

extent:
  name                              { $$ = (AstExtent){.name = $1}; }
| INT                               { $$ = (AstExtent){.name = {NULL, @1}, .i = parse_int(p, @1)}; }
;

grad:
  %empty                            { $$ = (AstName){0}; }
| name
;

expr:
  primary
| expr '?' expr ':' expr            { $$ = parse_expr(p, AST_COND, @$, $1, $3, $5); NEST($$, @2); }
| expr OROR expr                    { $$ = parse_operator(p, AST_OR, @$, @2, $1, $3); }
| expr ANDAND expr                  { $$ = parse_operator(p, AST_AND, @$, @2, $1, $3); }
| expr '|' expr                     { $$ = parse_operator(p, AST_BOR, @$, @2, $1, $3); }
| expr '^' expr                     { $$ = parse_operator(p, AST_BXOR, @$, @2, $1, $3); }
| expr '&' expr                     { $$ = parse_operator(p, AST_BAND, @$, @2, $1, $3); }
| expr EQEQ expr                    { $$ = parse_operator(p, AST_EQ, @$, @2, $1, $3); }
| expr NOTEQ expr                   { $$ = parse_operator(p, AST_NE, @$, @2, $1, $3); }
| expr '<' expr                     { $$ = parse_operator(p, AST_LT, @$, @2, $1, $3); }
| expr LESSEQ expr                  { $$ = parse_operator(p, AST_LE, @$, @2, $1, $3); }
| expr '>' expr                     { $$ = parse_operator(p, AST_GT, @$, @2, $1, $3); }
| expr GREATEREQ expr               { $$ = parse_operator(p, AST_GE, @$, @2, $1, $3); }
| expr SHIFTL expr                  { $$ = parse_operator(p, AST_SHL, @$, @2, $1, $3); }
| expr SHIFTR expr                  { $$ = parse_operator(p, AST_SHR, @$, @2, $1, $3); }
| expr '+' expr                     { $$ = parse_operator(p, AST_ADD, @$, @2, $1, $3); }
| expr '-' expr                     { $$ = parse_operator(p, AST_SUB, @$, @2, $1, $3); }
| expr '*' expr                     { $$ = parse_operator(p, AST_MUL, @$, @2, $1, $3); }
| expr '/' expr                     { $$ = parse_operator(p, AST_DIV, @$, @2, $1, $3); }
| expr '%' expr                     { $$ = parse_operator(p, AST_MOD, @$, @2, $1, $3); }
| '-' expr %prec UNARY              { UNARY($$, AST_NEG, @$, $2); }
| '!' expr                          { UNARY($$, AST_NOT, @$, $2); }
| '~' expr                          { UNARY($$, AST_BNOT, @$, $2); }
;

primary:
  INT                               { $$ = parse_expr(p, AST_INT, @$, NULL, NULL, NULL); $$->i = parse_int(p, @1); }
| FLOAT                             { $$ = parse_expr(p, AST_FLOAT, @$, NULL, NULL, NULL); $$->f = parse_float(p, @1); }
| name                              { $$ = parse_expr(p, AST_NAME, @$, NULL, NULL, NULL); $$->name = $1; }
| name '(' args_opt ')'             { $$ = parse_expr(p, AST_CALL, @$, NULL, NULL, NULL); $$->name = $1; $$->args = $3; NEST($$, @1); }
| name '[' args ']'                 { $$ = parse_expr(p, AST_INDEX, @$, NULL, NULL, NULL); $$->name = $1; $$->args = $3; NEST($$, @1); }
| name '[' slice ']'                { $$ = parse_expr(p, AST_SLICE, @$, NULL, NULL, NULL); $$->name = $1; $$->args = $3; NEST($$, @1); }
| '(' expr ')'                      { $$ = $2; NEST($$, @1); }
;

slice:
  bound ':' bound                   { $$ = (AstExprs){0}; VEC_PUSH(p->arena, &$$, $1); VEC_PUSH(p->arena, &$$, $3); }
;

bound: %empty                       { $$ = NULL; } | expr ;

args_opt: %empty                    { $$ = (AstExprs){0}; } | args ;

args:
  expr                              { $$ = (AstExprs){0}; VEC_PUSH(p->arena, &$$, $1); }
| args ',' expr                     { $$ = $1; VEC_PUSH(p->arena, &$$, $3); }
;

%%

// Bison calls this for a full stack only: syntax errors have their own report below.
static void ast_yyerror(const Span *at, void *scanner, Parse *p, const char *message) {
    (void)scanner;
    (void)message;
    parse_too_deep(p, *at);
}

static bool is_reserved(yysymbol_kind_t t) { return t >= YYSYMBOL_IMPORT && t <= YYSYMBOL_RETURN; }

static bool is_one_of(yysymbol_kind_t t, const char *chars) {
    const char *name = yysymbol_name(t); // '-' and its like carry their quotes
    return name[0] == '\'' && name[1] && name[2] == '\'' && strchr(chars, name[1]);
}

static bool starts_expr(yysymbol_kind_t t) {
    return t == YYSYMBOL_NAME || t == YYSYMBOL_INT || t == YYSYMBOL_FLOAT || is_one_of(t, "-!~(");
}

static bool is_operator(yysymbol_kind_t t) {
    return (t >= YYSYMBOL_OROR && t <= YYSYMBOL_SHIFTR) || is_one_of(t, "?|^&<>+-*/%");
}

// ", expected an expression", ", expected ';' or an operator"; nothing where the list would be long.
static void put_expected(Text *t, const yysymbol_kind_t *expected, int n) {
    enum { MOST = 5 }; // a longer list tells nothing
    const char *names[MOST];
    int count = 0;
    bool expr = false, oper = false, oper_wanted = false;
    for (int i = 0; i < n; i++)
        expr |= expected[i] == YYSYMBOL_FLOAT, oper_wanted |= expected[i] == YYSYMBOL_OROR;
    for (int i = 0; i < n; i++) {
        if (expr && starts_expr(expected[i])) continue;
        if (!expr && is_operator(expected[i])) {
            oper = true;
            continue;
        }
        if (oper_wanted && is_one_of(expected[i], "([")) continue; // a call's or an index's, after a name
        if (count == MOST - 1) return;
        names[count++] = yysymbol_name(expected[i]);
    }
    if (expr || oper) names[count++] = expr ? "an expression" : "an operator";
    for (int i = 0; i < count; i++)
        text_printf(t, "%s%s", i == 0 ? ", expected " : i + 1 < count ? ", " : " or ", names[i]);
}

static unsigned wanted(const yysymbol_kind_t *expected, int n) {
    unsigned w = 0;
    bool name = false, integer = false, expr = false, definition = false;
    for (int i = 0; i < n; i++) {
        const char *c = yysymbol_name(expected[i]);
        name |= expected[i] == YYSYMBOL_NAME;
        integer |= expected[i] == YYSYMBOL_INT;
        expr |= expected[i] == YYSYMBOL_FLOAT;
        if (expected[i] == YYSYMBOL_OROR) w |= WANTED_OPERATOR;
        if (expected[i] == YYSYMBOL_LET) w |= WANTED_STATEMENT;
        if (expected[i] == YYSYMBOL_DIM) w |= WANTED_ITEM;
        definition |= expected[i] == YYSYMBOL_ATTENTION;
        if (!strcmp(c, "';'")) w |= WANTED_SEMICOLON;
        if (n == 1 && !strcmp(c, "'('")) w |= WANTED_PARAMS;
        if (n == 1 && !strcmp(c, "':'")) w |= WANTED_COLON;
        if (n == 2 && !strcmp(c, "']'")) w |= WANTED_EXTENT;
    }
    if (definition && !(w & WANTED_STATEMENT)) w |= WANTED_DEFINITION; // both: any reserved word, in place of a name
    if (expr) w |= WANTED_OPERAND;
    return name && integer && !expr ? w | WANTED_EXTENT : w;
}

// Where a name can stand `share` can: it is not said again. Returns how many are left.
static int without_share(yysymbol_kind_t *expected, int n) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (expected[i] != YYSYMBOL_SHARE) expected[kept++] = expected[i];
    return kept;
}

// The keyword that may stand here (any, where the parser does not say which may) and is nearest to this name, or NULL.
static const char *keyword_meant(const Parse *p, Span at, const yysymbol_kind_t *expected, int n) {
    NameGuess g;
    names_guess_init(&g, arena_strndup(p->arena, p->text + at.start, at.end - at.start));
    for (yysymbol_kind_t t = YYSYMBOL_IMPORT; is_reserved(t); t++) {
        const char *quoted = yysymbol_name(t);
        bool may = !n;
        for (int i = 0; i < n; i++) may |= expected[i] == t;
        if (may) names_guess(&g, arena_strndup(p->arena, quoted + 1, strlen(quoted) - 2));
    }
    return g.best;
}

static int yyreport_syntax_error(const yypcontext_t *context, void *scanner, Parse *p) {
    (void)scanner;
    yysymbol_kind_t expected[YYNTOKENS];
    int n = without_share(expected, yypcontext_expected_tokens(context, expected, YYNTOKENS));
    yysymbol_kind_t token = yypcontext_token(context);
    Span at = *yypcontext_location(context);
    Text t = text_new(p->arena);
    if (token == YYSYMBOL_YYEOF || token == YYSYMBOL_YYEMPTY)
        text_puts(&t, "unexpected end of file");
    else
        text_printf(&t, "unexpected '%.*s'", at.end - at.start > 40 ? 40 : (int)(at.end - at.start), p->text + at.start);
    put_expected(&t, expected, n);
    unsigned w = wanted(expected, n);
    if (token == YYSYMBOL_NAME && w & WANTED_STATEMENT) VEC_PUSH(p->arena, &p->module->without_let, parse_name(p, at));
    parse_unexpected(p, at, t.s, w | (is_reserved(token) ? MET_RESERVED : 0),
                     token == YYSYMBOL_NAME ? keyword_meant(p, at, expected, n) : NULL);
    return 0;
}
