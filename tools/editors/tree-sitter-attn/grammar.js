// grammar.js: the grammar of .attn (frontend/lex.l, frontend/gram.y) for tree-sitter. src/ is generated from it: `make editors`.
//
// tests/editors holds it to the compiler: what the compiler parses has no ERROR node, and a syntax error gives one.
const keywords = require('./keywords.js')

// C's precedences, as in frontend/operators.def.
const unary = 12
const binary = [
  [2, '||'], [3, '&&'], [4, '|'], [5, '^'], [6, '&'],
  [7, choice('==', '!=')], [8, choice('<', '<=', '>', '>=')], [9, choice('<<', '>>')],
  [10, choice('+', '-')], [11, choice('*', '/', '%')],
]

const commaSep1 = (rule) => seq(rule, repeat(seq(',', rule)))

module.exports = grammar({
  name: 'attn',
  word: $ => $.identifier,
  extras: $ => [/[ \t\r\n\f\v]/, $.comment],
  supertypes: $ => [$._expression],
  inline: $ => [$._name],

  rules: {
    source_file: $ => repeat(choice(
      $.import, $.constant, $.function, $.normalization, $.attention, $.recurrence)),

    import: $ => seq('import', field('path', $.module_path), ';'),
    module_path: $ => seq($._word, repeat(seq('.', $._word))),
    _word: $ => choice($.identifier, ...keywords.map(word => alias(word, $.identifier))),

    constant: $ => seq('const', field('name', $._name), '=', field('value', $._expression), ';'),
    function: $ => seq('fn', field('name', $._name), field('parameters', $.parameters), $._body),
    normalization: $ => seq('normalization', field('name', $._name), field('parameters', $.parameters), $._body),
    attention: $ => seq('attention', field('name', $._name), field('body', $.variant_body)),
    recurrence: $ => seq('recurrence', field('name', $._name), field('body', $.variant_body)),
    variant_body: $ => seq('{', repeat(choice($.dims, $.input, $.share, $.clause)), '}'),

    dims: $ => seq('dim', commaSep1($.dim), ';'),
    dim: $ => seq(field('name', $._name), '=', field('value', $._expression)),
    input: $ => seq(
      'input', field('name', $._name), ':', field('type', choice(alias($.identifier, $.type), $.reserved)),
      optional(field('extents', $.extents)), optional(field('grad', choice(alias($.identifier, $.attribute), $.reserved))), ';'),
    share: $ => seq('share', field('name', $._name), '=', field('of', $._name), ';'),
    extents: $ => seq('[', commaSep1(choice($._name, $.integer)), ']'),
    clause: $ => seq(field('name', $._name), field('parameters', $.parameters), $._body),

    parameters: $ => seq('(', optional(commaSep1($._name)), ')'),
    _body: $ => choice(seq('=', field('body', $._expression), ';'), field('body', $.block)),
    block: $ => seq('{', repeat(choice($.let, $.emit)), $.return, '}'),
    let: $ => seq('let', field('name', $._name), '=', field('value', $._expression), ';'),
    emit: $ => seq('emit', field('name', $._name), '=', field('value', $._expression), ';'),
    return: $ => seq('return', field('value', $._expression), ';'),

    _expression: $ => choice(
      $.identifier, $.integer, $.float, $.call, $.index, $.slice, $.parenthesized, $.unary, $.binary, $.conditional,
      $.reserved),
    parenthesized: $ => seq('(', $._expression, ')'),
    call: $ => seq(field('function', $._name), '(', optional(commaSep1($._expression)), ')'),
    index: $ => seq(field('array', $._name), '[', commaSep1($._expression), ']'),
    slice: $ => seq(field('array', $._name), '[', optional(field('from', $._expression)), ':', optional(field('to', $._expression)), ']'),
    unary: $ => prec(unary, seq(field('operator', choice('-', '!', '~')), field('operand', $._expression))),
    binary: $ => choice(...binary.map(([level, operator]) => prec.left(level, seq(
      field('left', $._expression), field('operator', operator), field('right', $._expression))))),
    conditional: $ => prec.right(1, seq(
      field('condition', $._expression), '?', field('then', $._expression), ':', field('else', $._expression))),

    integer: _ => /[0-9]+/,
    float: _ => /([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+/,
    comment: _ => token(choice(/\/\/[^\n]*/, /\/\*[^*]*\*+([^/*][^*]*\*+)*\//)),

    identifier: _ => /[A-Za-z_][A-Za-z0-9_]*/,
    // A keyword is no name. tree-sitter takes one for a name where the keyword itself cannot stand. So it can stand there, but nothing
    // that is text may follow.
    _name: $ => choice($.identifier, $.reserved),
    reserved: _ => seq(choice(...keywords), '\u{10FFFF}'),
  },
})
