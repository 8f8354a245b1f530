; highlights.scm: names of captures are those of Neovim 0.10 and later, and of tree-sitter. `make editors` writes the lists.

(comment) @comment
(integer) @number
(float) @number.float
["import" "const" "fn" "normalization" "attention" "recurrence" "dim" "input" "let" "emit" "return"] @keyword
["+" "-" "*" "/" "%" "!" "~" "&" "|" "^" "<<" ">>" "<" "<=" ">" ">=" "==" "!=" "&&" "||" "="] @operator
(conditional ["?" ":"] @keyword.conditional.ternary)
["(" ")" "[" "]" "{" "}"] @punctuation.bracket
["," ";"] @punctuation.delimiter
(input ":" @punctuation.delimiter)
(slice ":" @punctuation.delimiter)
(module_path "." @punctuation.delimiter)

(module_path (identifier) @module)
(attention name: (identifier) @type)
(recurrence name: (identifier) @type)
(function name: (identifier) @function)
(normalization name: (identifier) @function)
(constant name: (identifier) @constant)
(dim name: (identifier) @constant)
(input name: (identifier) @variable)
(input grad: (attribute) @attribute)
; list: types
((type) @type.builtin (#match? @type.builtin "^(f32|f16|bf16|i32|bool|e4m3|e5m2|i8)$"))
(extents (identifier) @constant)
(parameters (identifier) @variable.parameter)
(let name: (identifier) @variable)
(emit name: (identifier) @property)
(index array: (identifier) @variable)
(slice array: (identifier) @variable)

; list: clauses
((clause name: (identifier) @function.method) (#match? @function.method "^(score|modify|mask|normalize|output|query|key|value|decay|erase|write|bonus)$"))

; list: builtins
((call function: (identifier) @function.builtin) (#match? @function.builtin "^(exp|exp2|log|log2|sqrt|rsqrt|tanh|sigmoid|sin|cos|erf|abs|floor|min|max|pow|dot|sqnorm|rowmax|rowmin|rowsum)$"))
; list: conversions
((call function: (identifier) @type.builtin) (#match? @type.builtin "^(f32|i32|bool)$"))
; list: builtins
((call function: (identifier) @function) (#not-match? @function "^(exp|exp2|log|log2|sqrt|rsqrt|tanh|sigmoid|sin|cos|erf|abs|floor|min|max|pow|dot|sqnorm|rowmax|rowmin|rowsum)$")
; list: conversions
  (#not-match? @function "^(f32|i32|bool)$"))

; list: constants
((identifier) @constant.builtin (#match? @constant.builtin "^(true|false|inf)$"))
; list: sizes
((identifier) @constant (#match? @constant "^(B|H|Hkv|Hq|Hk|Hv|Sq|Sk|S|D|Dv|q_offset)$"))
