// The page at `/`: what the server holds and does, refreshed each second; no file and no host beside this
// one.
#include "serve/server.h"

namespace trireme::serve {

std::string_view live_page() {
  return R"html(<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Trireme</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#223}
h1{font-size:1.4rem}table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.3rem .6rem}
th:first-child,td:first-child{text-align:left}tr{border-bottom:1px solid #dde}th{color:#667;font-weight:500}
.bad{color:#b22}.bar{display:inline-block;width:1.2rem;background:#47a;margin-right:2px;vertical-align:bottom}
.bars{height:3rem;white-space:nowrap}small{color:#667}
@media(prefers-color-scheme:dark){body{background:#181b22;color:#dde}tr{border-color:#334}}
</style></head><body><h1>Trireme <small id="state"></small></h1>
<table><thead><tr><th>model</th><th>version</th><th>requests/s</th><th>rows/s</th><th>mean rows a batch</th>
<th>mean queue ms</th><th>mean compute ms</th><th>failed</th><th>batch sizes</th></tr></thead>
<tbody id="models"></tbody></table>
<p><small><a href="/metrics">/metrics</a> <a href="/v2">/v2</a> 
<a href="/v2/models/stats">statistics</a></small>
</p><script>
const last={};
function cell(row,text,cls){const td=row.insertCell();td.textContent=text;if(cls)td.className=cls;return td}
function rate(now,then,seconds){return ((now-then)/seconds).toFixed(1)}
function mean(d,p){const n=d.count-p.count;return n>0?((d.ns-p.ns)/n/1e6).toFixed(2):'-'}
async function tick(){
 try{
  const index=await(await fetch('/v2/repository/index',{method:'POST',body:'{}'})).json();
  const stats=(await(await fetch('/v2/models/stats')).json()).model_stats;
  const body=document.getElementById('models');const t=performance.now()/1e3;body.textContent='';
  for(const entry of index){
   const row=body.insertRow();cell(row,entry.name);cell(row,entry.version||'');
   const s=stats.find(x=>x.name===entry.name&&x.version===entry.version);
   if(!s){const td=cell(row,entry.state+': '+(entry.reason||''),'bad');td.colSpan=7;continue}
   const key=s.name+'/'+s.version,p=last[key]||{t:t-1,s};last[key]={t,s};
   const d=t-p.t,i=s.inference_stats,j=p.s.inference_stats;
   cell(row,rate(i.success.count,j.success.count,d));cell(row,rate(s.inference_count,p.s.inference_count,d));
   cell(row,s.execution_count?(s.inference_count/s.execution_count).toFixed(2):'-');
   cell(row,mean(i.queue,j.queue));cell(row,mean(i.compute_infer,j.compute_infer));cell(row,i.fail.count);
   const bars=cell(row,'','bars'),most=Math.max(1,...s.batch_stats.map(b=>b.compute_infer.count));
   for(const b of s.batch_stats){const e=document.createElement('span');e.className='bar';
    e.style.height=(4+44*b.compute_infer.count/most)+'px';
    e.title=b.batch_size+' rows: '+b.compute_infer.count+' batches';bars.append(e)}
  }
  document.getElementById('state').textContent=index.length+' model versions';
 }catch(e){document.getElementById('state').textContent='not reachable'}
 setTimeout(tick,1000);
}
tick();
</script></body></html>
)html";
}

}  // namespace trireme::serve
