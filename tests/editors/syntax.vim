" syntax.vim: what Vim's syntax says of the spans of files. In: $SPANS, lines of JSON [file, [[line, column, bytes], ...]].
" Out: $GROUPS, for each a line of JSON, the group of each span, '' where it has several.
set nomore hidden
filetype plugin indent on
syntax on
function! Group(span) abort
  let [line, column, bytes] = a:span
  let group = synIDattr(synID(line, column, 1), 'name')
  for i in range(column + 1, column + bytes - 1)
    if synIDattr(synID(line, i, 1), 'name') !=# group
      return ''
    endif
  endfor
  return group
endfunction
let s:out = []
for s:text in readfile($SPANS)
  let [s:file, s:spans] = json_decode(s:text)
  execute 'edit ++enc=utf-8' fnameescape(s:file)
  if &filetype !=# 'attn' || &formatprg !=# 'attnc fmt -'
    cquit
  endif
  call add(s:out, json_encode(map(s:spans, {_, span -> Group(span)})))
  bwipeout!
endfor
call writefile(s:out, $GROUPS)
qall!
