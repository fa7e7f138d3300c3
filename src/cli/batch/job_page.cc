// The markup and script of the page that shows a batch job.
#include "cli/batch/job_page.h"

#include <string_view>

#include "serve/seeing/live_page.h"

namespace trireme::cli {
namespace {

constexpr std::string_view kBody = R"html(
<header><h1>Trireme batch</h1><p id="state" role="status">asking the worker</p>
<p><progress id="done" max="1" value="0" aria-label="share of the chunks that are done"></progress></p>
<dl id="server"></dl></header>
<main>
<section class="cards">
<div class="card"><h3>rows/s of all workers, last minutes</h3><div id="rate"></div></div>
<div class="card"><h3>the job</h3><dl id="facts"></dl></div></section>
<section aria-labelledby="h-stages"><h2 id="h-stages">Where the time goes</h2>
<p class="note" id="slowest"></p><div class="wide"><table>
<thead><tr><th scope="col">stage</th><th scope="col">share of the workers' time</th><th scope="col"></th></tr>
</thead><tbody id="stages"></tbody></table></div></section>
<section aria-labelledby="h-workers"><h2 id="h-workers">Workers</h2><div class="wide"><table>
<thead><tr><th scope="col">process</th><th scope="col">rows/s</th><th scope="col">chunks done</th>
<th scope="col">in hand</th></tr></thead><tbody id="workers"></tbody></table></div></section>
<section aria-labelledby="h-goals" id="goals" hidden><h2 id="h-goals">Goals</h2><ul id="goal"></ul></section>
</main>
<footer><p><a href="/metrics">/metrics</a> <a href="/status.json">/status.json</a></p></footer>
)html";

// The script inserts the worker's answers only as text, never as markup.
constexpr std::string_view kScript = R"js('use strict';
const $=id=>document.getElementById(id),POINTS=180;
let rates=[];
function el(name,text){const e=document.createElement(name);if(text!==undefined)e.textContent=text;return e}
function count(n){return Math.round(n).toLocaleString('en')}
function percent(share){return (100*share).toFixed(1)+' %'}
function bytes(n){const unit=['B','kB','MB','GB','TB'];let i=0;
  while(n>=1000&&i<unit.length-1){n/=1000;++i}return n.toFixed(i?1:0)+' '+unit[i]}
function time(s){
  if(s===null||s===undefined)return 'not known yet';
  const h=Math.floor(s/3600),m=Math.floor(s/60)%60;
  return h?h+' h '+m+' min':m?m+' min '+Math.floor(s%60)+' s':s.toFixed(s<10?1:0)+' s';
}
function list(id,pairs){
  $(id).replaceChildren(...pairs.flatMap(([name,value])=>[el('dt',name),el('dd',value)]));
}
function table(id,rows){
  $(id).replaceChildren(...rows.map(cells=>{
    const row=el('tr');
    cells.forEach((cell,i)=>{
      const box=el(i?'td':'th',typeof cell==='object'?undefined:cell);
      if(!i)box.scope='row';
      if(typeof cell==='object')box.append(cell);
      row.append(box);
    });
    return row;
  }));
}
function meter(share){
  const m=el('meter');
  m.max=1;m.value=Math.min(1,share);m.ariaLabel=percent(share);
  return m;
}
function draw(){
  const W=300,H=80,top=Math.max(...rates,1),space='http://www.w3.org/2000/svg';
  const svg=document.createElementNS(space,'svg'),line=document.createElementNS(space,'polyline');
  svg.setAttribute('viewBox','0 0 '+W+' '+H);
  svg.setAttribute('role','img');
  svg.setAttribute('aria-label',count(rates[rates.length-1])+' rows/s, now; '+count(top)+' at most');
  line.setAttribute('class','line');
  line.setAttribute('points',rates.map((r,i)=>(i*W/(POINTS-1)).toFixed(1)+','+(H-4-(H-8)*r/top).toFixed(1))
    .join(' '));
  svg.append(line);
  $('rate').replaceChildren(svg);
}
function show(s){
  const done=s.chunks>0&&s.chunks_done===s.chunks;
  $('done').value=s.chunks?s.chunks_done/s.chunks:0;
  document.title=(s.chunks?percent(s.chunks_done/s.chunks)+' · ':'')+'Trireme batch';
  $('state').className='';
  $('state').textContent=done?'done':!s.chunks?'the input is being cut':
    percent(s.chunks_done/s.chunks)+', end in '+time(s.left_s);
  list('server',[['model',s.model],['output',s.output]]);
  if(!s.chunks)return;
  rates=rates.concat([s.rows_per_s]).slice(-POINTS);
  draw();
  const facts=[['rows',count(s.rows_done)+' of '+count(s.rows)],['rows/s',count(s.rows_per_s)],
    ['failed rows',count(s.errors)],['chunks',count(s.chunks_done)+' of '+count(s.chunks)],
    ['written',bytes(s.bytes)],['model busy',percent(s.busy)],
    ['end',done?'done':'in '+time(s.left_s)+(s.left_s===null?'':' ('+time(s.least_left_s)+' to '+
      time(s.most_left_s)+')')]];
  if(s.cost_at_end)facts.push(['cost',s.cost.toFixed(2)+' of '+s.cost_at_end.toFixed(2)+' at the end']);
  if(s.errors)facts.push(['which rows failed',s.output+'/errors']);
  list('facts',facts);
  $('slowest').textContent=s.chunks_done?'Slowest: '+s.slowest+'. '+s.advice:'';
  table('stages',s.stages.map(x=>[x.name,percent(x.share),meter(x.share)]));
  table('workers',s.workers.map(w=>
    [w.process,count(w.rows_per_s),count(w.chunks_done),count(w.chunks_held)]));
  $('goals').hidden=!s.goals.length;
  $('goal').replaceChildren(...s.goals.map(g=>el('li',g)));
}
async function look(){
  try{
    const answer=await fetch('/status.json',{cache:'no-store'});
    if(!answer.ok)throw Error(answer.status+' '+(await answer.text()).slice(0,300));
    show(await answer.json());
  }catch(e){
    $('state').className='bad';
    $('state').textContent='the worker does not answer: '+e.message+'; below is what it said last';
  }
}
look();setInterval(look,1000);
)js";

}  // namespace

http::Response job_page() { return serve::house_page("Trireme batch", kBody, kScript); }

}  // namespace trireme::cli
