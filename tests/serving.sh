#!/bin/sh
# serving.sh all|some FILE...: what `attnc check` is asked of ragged and paged batches: a line for each list of cases, with the file, how many cases there are,
# and the other arguments. Mixed lengths: without keys, without queries, one of either, fewer keys than queries, pages and tiles not full and just full.
which=$1
shift
lengths='--in=kv_len=0,1,300,130,64,129,17,16'
starts='--in=q_start=0,1,5,5,135,136,140,141,141' # Sq: 1 4 0 130 1 4 1 0; 3 rows at the end are nobody's
packed='--in=kv_start=0,0,1,301,431,495,624,641,657'
shapes() { # FRONT GROUP...: of each group one shape
    front=$1
    shift
    for group; do printf ' --shape=%s,H=%s,Hkv=%s' "$front" 8 $((8 / group)); done
}
for file; do
    case $file in
    *document*) data='--in=doc=0..2' ;;
    *prefix_lm*) data='--in=length=0..40' ;;
    *) data= ;;
    esac
    if [ "$which" = some ]; then
        echo "$file 1 --layout=paged $data --in=kv_len=0,1,70,33,-1 --in=q_start=0,1,5,5,36,37$(shapes Tq=40,page=5,table=14 4)"
        echo "$file 1 --layout=ragged $data --in=kv_start=0,0,1,71,104,104 --in=q_start=0,1,5,5,36,37$(shapes Tq=40,Tk=110 8)"
        continue
    fi
    for page in 1 5 16 64 128; do
        table=$((300 / page + 1))
        echo "$file 3 --layout=paged $data $lengths $starts$(shapes Tq=144,page=$page,table=$table 1 4 8)"
        echo "$file 3 --layout=paged:$page $data $lengths$(shapes Tq=8,table=$table 1 4 8)"
    done
    echo "$file 3 --layout=paged $data $lengths --in=q_offset=-3,0,7,1000,63,-200,16,15 $(shapes Tq=32,page=16,table=19 1 4 8)"
    echo "$file 3 --layout=paged $data --in=kv_len=-7,3,500,2147483647 --in=page_table=-5..40 $(shapes Tq=8,page=16,table=4,pages=20,max_q=1 1 4 8)"
    echo "$file 3 --layout=paged $data $lengths $starts$(shapes Tq=144,page=16,table=19,max_q=1 1 4 8)" # a hint that is wrong costs time, never rows
    echo "$file 3 --layout=paged $data $lengths$(shapes Tq=8,page=16,table=19,max_q=1000 1 4 8)"
    echo "$file 3 --layout=paged --invariant $data $lengths $starts$(shapes Tq=144,page=16,table=19,max_q=1 1 4 8)"
    echo "$file 3 --layout=ragged $data $packed $starts$(shapes Tq=144,Tk=660 1 4 8)"
    echo "$file 3 --layout=ragged $data --in=q_start=-4,9,3,2147483647 --in=kv_start=2,-9,70,60$(shapes Tq=20,Tk=90 1 4 8)"
done
