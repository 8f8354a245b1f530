" attn.vim: highlights .attn. `make editors` writes the lists.
if exists('b:current_syntax')
  finish
endif

" list: keywords
let s:keywords = 'import const fn normalization attention recurrence dim input let emit return'
" list: clauses
let s:clauses = 'score modify mask normalize output query key value decay erase write bonus'
" list: builtins
let s:builtins = 'exp exp2 log log2 sqrt rsqrt tanh sigmoid sin cos erf abs floor min max pow dot sqnorm rowmax rowmin rowsum'
" list: types
let s:types = 'f32 f16 bf16 i32 bool e4m3 e5m2 i8'
" list: conversions
let s:conversions = 'f32 i32 bool'
" list: constants
let s:constants = 'true false inf'
" list: sizes
let s:sizes = 'B H Hkv Hq Hk Hv Sq Sk S D Dv q_offset'
let s:any = {names -> '\<\%(' .. substitute(names, ' ', '\\|', 'g') .. '\)\>'}

" Of two patterns that match at a place, the later one is taken.
syntax match attnName '\h\w*'
syntax match attnFunction '\h\w*\ze\_s*('
execute 'syntax match attnSize /' .. s:any(s:sizes) .. '/'
execute 'syntax match attnConstant /' .. s:any(s:constants) .. '/'
execute 'syntax match attnBuiltin /' .. s:any(s:builtins) .. '\ze\_s*(/'
execute 'syntax match attnType /' .. s:any(s:conversions) .. '\ze\_s*(/'
execute 'syntax match attnType /\%(:\s*\)\@<=' .. s:any(s:types) .. '/'
execute 'syntax match attnClause /' .. s:any(s:clauses) .. '\ze\_s*(\%(\w\|\_s\|,\)*)\_s*\%(=\_[^=]\|{\)/'
syntax match attnFunction '\%(\<\%(fn\|normalization\)\s\+\)\@<=\h\w*'
syntax match attnAttribute '\<grad\>\ze\s*;'
execute 'syntax match attnKeyword /' .. s:any(s:keywords) .. '/'
syntax match attnPath '\%(\<import\s\+\)\@<=\h\w*\%(\s*\.\s*\h\w*\)*' contains=attnPathDot
syntax match attnPathDot '\.' contained

syntax match attnOperator '[-+*/%&|^<>!~?:=]'
syntax match attnDelimiter '[][(){};,.]'
syntax match attnError '[^[:blank:]a-zA-Z0-9_+*/%&|^<>!~?:=(){};,.\]\[-]'
syntax match attnError '#.*$'
syntax match attnError +"[^";]*"\?\|'[^';]*'\|[^\x00-\x7f]\++
syntax match attnError '\.\?\d[[:alnum:]_.]*'
syntax match attnNumber '\.\@<!\<\d\+\>\.\@!'
syntax match attnFloat '\<\d\+\.\d*\%([eE][-+]\?\d\+\)\?\%([[:alnum:]_.]\)\@!'
syntax match attnFloat '\%(\.\|\w\)\@<!\.\d\+\%([eE][-+]\?\d\+\)\?\%([[:alnum:]_.]\)\@!'
syntax match attnFloat '\.\@<!\<\d\+[eE][-+]\?\d\+\%([[:alnum:]_.]\)\@!'

syntax match attnComment '//.*$' contains=@Spell
syntax region attnComment start='/\*' end='\*/' contains=@Spell fold
syntax sync fromstart

highlight default link attnKeyword Keyword
highlight default link attnClause Function
highlight default link attnFunction Function
highlight default link attnBuiltin Special
highlight default link attnType Type
highlight default link attnAttribute StorageClass
highlight default link attnConstant Constant
highlight default link attnSize Constant
highlight default link attnPath Include
highlight default link attnNumber Number
highlight default link attnFloat Float
highlight default link attnOperator Operator
highlight default link attnDelimiter Delimiter
highlight default link attnComment Comment
highlight default link attnError Error

let b:current_syntax = 'attn'
