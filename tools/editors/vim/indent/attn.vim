" attn.vim: braces and continued lines indent as in C.
if exists('b:did_indent')
  finish
endif
let b:did_indent = 1

setlocal cindent cinkeys=0{,0},0),!^F,o,O
let b:undo_indent = 'setlocal cindent< cinkeys<'
