[(variant_body) (block)] @indent.begin
"}" @indent.branch
