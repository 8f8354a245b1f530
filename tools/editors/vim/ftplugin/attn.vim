" attn.vim: options of .attn files. gq formats what it is given; the whole file is gggqG.
if exists('b:did_ftplugin')
  finish
endif
let b:did_ftplugin = 1

setlocal expandtab shiftwidth=4 softtabstop=4
setlocal commentstring=//\ %s comments=s1:/*,mb:*,ex:*/,://
setlocal formatprg=attnc\ fmt\ -
let b:undo_ftplugin = 'setlocal expandtab< shiftwidth< softtabstop< commentstring< comments< formatprg<'
